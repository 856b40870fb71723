// A machine, without lock, thread or clock, that knows what a server owes its standby. A standby is in sync once it has
// had every chunk of a commit. From then on no commit of the server counts without it, also while it is away.
#pragma once

#include <cstdint>

namespace luwu::standby {

class Sync {
  public:
    enum class Next : std::uint8_t {
        nothing,  // there is no standby: the commit counts
        copy,     // the standby has missed chunks of this commit
        commit,   // it has them all, and no more than the record is to be sent
        require,  // it has the commit: the server's owner notes that no commit counts without it from now on
        tell,     // it is told so, and its owner notes it: only then can it take over with all that counts
        wait,     // it is away, and was in sync
    };

    explicit Sync(bool required) : required_(required) {}

    // The standby's connection is there. What it has is not known until checked().
    void connected() {
        connected_ = true;
        has_commit_ = knows_ = false;
        missed_ = true;
    }
    void lost() { connected_ = has_commit_ = knows_ = false; }
    // A record is about to be written here. True: it is to be sent, and lost() or passed_by() tell if it is not.
    [[nodiscard]] bool sends() {
        if (!connected_) missed_ = true;
        return connected_ && !missed_;
    }
    void passed_by() { missed_ = true; }
    // The server has made a commit.
    void committed() { has_commit_ = false; }
    // The standby has every chunk of that commit.
    void copied() { missed_ = false; }
    // The standby has that commit on its disk.
    void has() {
        has_commit_ = connected_;
        missed_ = !connected_;
    }
    void required() { required_ = true; }
    // The standby has noted that no commit counts without it.
    void knows() { knows_ = connected_; }
    // The standby may have noted something else since.
    void doubted() { knows_ = false; }
    // The server's owner gives the standby up.
    void released() { required_ = connected_ = has_commit_ = knows_ = false; }

    [[nodiscard]] Next next() const {
        if (!connected_) return required_ ? Next::wait : Next::nothing;
        if (has_commit_) return !required_ ? Next::require : knows_ ? Next::nothing : Next::tell;
        return missed_ ? Next::copy : Next::commit;
    }
    [[nodiscard]] bool is_connected() const { return connected_; }
    [[nodiscard]] bool is_required() const { return required_; }

  private:
    bool required_;
    bool connected_ = false;
    bool missed_ = true;       // the standby lacks chunks that were written here since the last commit
    bool has_commit_ = false;  // the standby has the server's last commit
    bool knows_ = false;       // the standby has noted, in this connection, that no commit counts without it
};

}  // namespace luwu::standby
