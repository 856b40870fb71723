// The part of JSON that settings need: objects, arrays, strings with simple escapes, numbers, true, false and null.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace luwu::wire {

class Json {
  public:
    enum class Kind { kNull, kBoolean, kNumber, kText, kArray, kObject };
    using Array = std::vector<Json>;
    using Object = std::map<std::string, Json, std::less<>>;

    // Throws std::runtime_error, naming the place, on anything that is not exactly one value.
    static Json parse(std::string_view text);

    Json() = default;
    Json(Kind kind, std::string text) : kind_(kind), text_(std::move(text)) {}
    explicit Json(Array items) : kind_(Kind::kArray), items_(std::move(items)) {}
    explicit Json(Object members) : kind_(Kind::kObject), members_(std::move(members)) {}

    // A member of an object; null when it is absent.
    [[nodiscard]] const Json& operator[](std::string_view name) const;
    [[nodiscard]] bool is_null() const { return kind_ == Kind::kNull; }
    [[nodiscard]] const Object& object() const;

    // The value, or `otherwise` for null. Throws std::runtime_error when it is of another kind.
    [[nodiscard]] const Array& array() const;  // null is an empty one
    [[nodiscard]] std::string text(const std::string& otherwise = {}) const;
    [[nodiscard]] bool boolean(bool otherwise) const;
    [[nodiscard]] double real(double otherwise) const;
    [[nodiscard]] std::uint64_t integer(std::uint64_t otherwise) const;

  private:
    void expect(Kind kind, const char* name) const;
    template <typename Number>
    [[nodiscard]] Number number(const char* name) const;

    Kind kind_ = Kind::kNull;
    std::string text_;  // a number, too, is kept as written: a 64-bit mask does not fit into a double
    Array items_;
    Object members_;
};

}  // namespace luwu::wire
