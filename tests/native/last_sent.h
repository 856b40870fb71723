// An outbox that keeps the last datagram.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "fabric/protocol/node.h"

namespace luwu::test {

class LastSent : public fabric::Outbox {
  public:
    void send(const fabric::Address& address, std::span<const std::byte> head,
              std::span<const std::byte> body) override {
        to = address;
        datagram.assign(head.begin(), head.end());
        datagram.insert(datagram.end(), body.begin(), body.end());
    }
    std::byte* room(std::size_t bytes) override {
        room_.resize(bytes);
        return room_.data();
    }
    fabric::Address to;
    std::vector<std::byte> datagram;

  private:
    std::vector<std::byte> room_;
};

}  // namespace luwu::test
