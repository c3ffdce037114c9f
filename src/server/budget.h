// What all requests may hold together of one thing: bytes of bodies, tokens, logprobs. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>

namespace droidspeak {

class Budget {
 public:
  explicit Budget(size_t most) : most_(most) {}

  size_t used() const { return used_; }

  // What one request has taken; given back at its end. The budget outlives it.
  class Share {
   public:
    explicit Share(Budget& budget) : budget_(budget) {}

    ~Share() { budget_.used_ -= amount_; }

    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Takes more; false when the budget does not have it.
    bool take(size_t amount) {
      if ((budget_.used_ += amount) > budget_.most_) {
        budget_.used_ -= amount;
        return false;
      }
      amount_ += amount;
      return true;
    }

   private:
    Budget& budget_;
    size_t amount_ = 0;
  };

 private:
  const size_t most_;
  std::atomic<size_t> used_ = 0;
};

}  // namespace droidspeak
