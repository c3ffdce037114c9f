// A value that is made once and then only read: copies share it. For what every prompt and every
// choice of one request has in common.
#pragma once

#include <initializer_list>
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

  const Container& operator*() const {
    static const Container kNone;
    return value_ ? *value_ : kNone;
  }

  const Container* operator->() const { return &**this; }

 private:
  std::shared_ptr<const Container> value_;  // null: empty
};

}  // namespace droidspeak
