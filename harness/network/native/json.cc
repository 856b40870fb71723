#include "json.h"

#include <charconv>
#include <stdexcept>

namespace luwu::wire {
namespace {

class Parser {
  public:
    explicit Parser(std::string_view text) : text_(text) {}

    Json document() {
        Json value = parse_value();
        skip_space();
        if (place_ != text_.size()) fail("nothing more");
        return value;
    }

  private:
    [[noreturn]] void fail(const std::string& expected) const {
        throw std::runtime_error("settings: expected " + expected + " at character " + std::to_string(place_));
    }

    void skip_space() {
        while (place_ < text_.size() && std::string_view(" \t\r\n").find(text_[place_]) != std::string_view::npos) {
            ++place_;
        }
    }

    bool take(std::string_view token) {
        skip_space();
        if (text_.substr(place_, token.size()) != token) return false;
        place_ += token.size();
        return true;
    }

    void need(std::string_view token) {
        if (!take(token)) fail("'" + std::string(token) + "'");
    }

    Json parse_value() {
        if (take("null")) return Json{};
        if (take("true")) return {Json::Kind::kBoolean, "true"};
        if (take("false")) return {Json::Kind::kBoolean, "false"};
        if (take("\"")) return {Json::Kind::kText, parse_string()};
        if (take("[")) return Json(parse_array());
        if (take("{")) return Json(parse_object());
        return {Json::Kind::kNumber, parse_number()};
    }

    std::string parse_string() {
        std::string result;
        while (place_ < text_.size() && text_[place_] != '"') {
            if (text_[place_] == '\\') {
                ++place_;
                if (place_ == text_.size() || std::string_view("\"\\/").find(text_[place_]) == std::string_view::npos) {
                    fail("one of \" \\ / after a backslash");
                }
            }
            result += text_[place_++];
        }
        if (place_ == text_.size()) fail("the end of a string");
        ++place_;
        return result;
    }

    Json::Array parse_array() {
        Json::Array result;
        if (take("]")) return result;
        do result.push_back(parse_value());
        while (take(","));
        need("]");
        return result;
    }

    Json::Object parse_object() {
        Json::Object result;
        if (take("}")) return result;
        do {
            need("\"");
            std::string name = parse_string();
            need(":");
            result.insert_or_assign(std::move(name), parse_value());
        } while (take(","));
        need("}");
        return result;
    }

    std::string parse_number() {
        const std::size_t length = text_.substr(place_).find_first_not_of("+-.0123456789eE");
        const std::string_view digits = text_.substr(place_, length);
        if (digits.empty()) fail("a value");
        place_ += digits.size();
        return std::string(digits);
    }

    std::string_view text_;
    std::size_t place_ = 0;
};

}  // namespace

Json Json::parse(std::string_view text) { return Parser(text).document(); }

void Json::expect(Kind kind, const char* name) const {
    if (kind_ != kind) throw std::runtime_error("settings: expected " + std::string(name) + ", found '" + text_ + "'");
}

template <typename Number>
Number Json::number(const char* name) const {
    expect(Kind::kNumber, name);
    Number result{};
    const char* end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(text_.data(), end, result);
    if (error != std::errc{} || stop != end) {
        throw std::runtime_error("settings: expected " + std::string(name) + ", found " + text_);
    }
    return result;
}

const Json::Object& Json::object() const {
    expect(Kind::kObject, "an object");
    return members_;
}

const Json::Array& Json::array() const {
    if (!is_null()) expect(Kind::kArray, "an array");
    return items_;
}

const Json& Json::operator[](std::string_view name) const {
    static const Json nothing;
    const auto found = object().find(name);
    return found == members_.end() ? nothing : found->second;
}

std::string Json::text(const std::string& otherwise) const {
    if (is_null()) return otherwise;
    expect(Kind::kText, "a string");
    return text_;
}

bool Json::boolean(bool otherwise) const {
    if (is_null()) return otherwise;
    expect(Kind::kBoolean, "true or false");
    return text_ == "true";
}

double Json::real(double otherwise) const { return is_null() ? otherwise : number<double>("a number"); }

std::uint64_t Json::integer(std::uint64_t otherwise) const {
    return is_null() ? otherwise : number<std::uint64_t>("a whole number from 0 on");
}

}  // namespace luwu::wire
