// What a Failure says, for tests of what is refused.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/error.h"

namespace droidspeak {

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

inline void expect_refusal(const std::function<void()>& body, std::string_view part) {
  const std::string message = message_of(body);
  EXPECT_NE(message.find(part), std::string::npos) << '"' << message << "\" lacks " << part;
}

}  // namespace droidspeak
