// A value that is made once and then only read: copies share it. For what the prompts and choices
// of one request have in common.
#pragma once

#include <initializer_list>
#include <iterator>
#include <memory>
#include <utility>

namespace droidspeak {

template <class Container>
class Shared {
 public:
  Shared() = default;

  // NOLINTNEXTLINE(google-explicit-constructor)
  Shared(Container value) : value_(std::make_shared<const Container>(std::move(value))) {}

  Shared(std::initializer_list<typename Container::value_type> items) : Shared(Container(items)) {}

  template <std::input_iterator Iterator>
  Shared(Iterator begin, Iterator end) : Shared(Container(begin, end)) {}

  const Container& operator*() const {
    static const Container kNone;
    return value_ ? *value_ : kNone;
  }

  const Container* operator->() const { return &**this; }

  // Also where the container itself is wanted.
  operator const Container&() const { return **this; }  // NOLINT(google-explicit-constructor)

  bool operator==(const Shared& other) const { return value_ == other.value_ || **this == *other; }

 private:
  std::shared_ptr<const Container> value_;  // null: empty
};

}  // namespace droidspeak
