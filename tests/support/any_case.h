// Drawing the cases of properties so that a counterexample can be read: each value has a name, and is shown
// as its text form, never as bytes or as one of many numbers that nobody can tell apart.
//
//   const int cp = pick("cp", rc::gen::inRange(1, 9));        "cp = 3"
//   const Mesh mesh = pick_case("mesh", [] { ... });          "mesh = dp=2,tp=4": what it is drawn from
//   inside is not shown
#pragma once

#include <map>
#include <optional>
#include <ostream>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <rapidcheck.h>

namespace cp {

template <class T>
void show_text(const T& value, std::ostream& out);

namespace any_case_detail {

template <class T>
inline constexpr bool kNoText = false;

template <class T>
inline constexpr bool kIsPair = false;
template <class First, class Second>
inline constexpr bool kIsPair<std::pair<First, Second>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

}  // namespace any_case_detail

// The text form that the type has: showValue(), to_string(), name(), to_text() or placements and the like by
// <<; of containers those of their elements. A type that has none does not compile: give it a showValue()
// beside its generator.
template <class T>
void show_text(const T& value, std::ostream& out) {
  namespace detail = any_case_detail;
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, char> || std::is_same_v<T, signed char> ||
                       std::is_same_v<T, unsigned char>) {
    out << static_cast<int>(value);
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    rc::show(std::string(value), out);  // with escapes
  } else if constexpr (requires { showValue(value, out); }) {
    showValue(value, out);
  } else if constexpr (requires { out << to_string(value); }) {
    out << to_string(value);
  } else if constexpr (requires { out << value.to_string(); }) {
    out << value.to_string();
  } else if constexpr (requires { out << name(value); }) {
    out << name(value);
  } else if constexpr (requires { out << to_text(value); }) {
    out << "\n" << to_text(value);
  } else if constexpr (detail::kIsOptional<T>) {
    if (value)
      show_text(*value, out);
    else
      out << "none";
  } else if constexpr (detail::kIsPair<T>) {
    out << "(", show_text(value.first, out), out << ", ", show_text(value.second, out), out << ")";
  } else if constexpr (std::ranges::range<T>) {
    out << "[";
    const char* separator = "";
    for (const auto& each : value) {
      out << std::exchange(separator, ", ");
      show_text<std::remove_cvref_t<decltype(each)>>(each, out);
    }
    out << "]";
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else if constexpr (std::is_enum_v<T>) {
    out << "number " << static_cast<std::int64_t>(value);
  } else {
    static_assert(detail::kNoText<T>, "no text form: give the type a showValue() beside its generator");
  }
}

template <class T>
struct Named {
  std::string name;
  T value;
};
template <class T>
void showValue(const Named<T>& named, std::ostream& out) {
  out << named.name << " = ";
  show_text(named.value, out);
}

// One value of the generator, in a property; `name` is what a counterexample calls it.
template <class T>
T pick(std::string_view name, rc::Gen<T> generator) {
  return (*rc::gen::map(std::move(generator),
                        [name = std::string(name)](T value) {
                          return Named<T>{name, std::move(value)};
                        }))
      .value;
}

// What make() draws and makes, as one value. It is called again after the property has returned, for smaller
// counterexamples: let it own what it uses.
template <class Make>
auto pick_case(std::string_view name, Make make) {
  return pick(name, rc::gen::exec(std::move(make)));
}

}  // namespace cp
