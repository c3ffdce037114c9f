// Compiled grammars by their text, the least recently used ones forgotten first. Thread-safe.
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "grammar/compiled_grammar.h"

namespace droidspeak {

class GrammarCache {
 public:
  // Texts and grammars together take at most so many bytes.
  explicit GrammarCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Null when it is not there.
  std::shared_ptr<const CompiledGrammar> find(const std::string& text) {
    MutexLock lock(mutex_);
    auto found = places_.find(text);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->grammar;
  }

  void put(const std::string& text, std::shared_ptr<const CompiledGrammar> grammar) {
    size_t bytes = 2 * text.size() + grammar->bytes();
    MutexLock lock(mutex_);
    if (bytes > max_bytes_ || places_.contains(text)) return;
    while (bytes_ + bytes > max_bytes_) forget(std::prev(entries_.end()));
    entries_.push_front({text, std::move(grammar), bytes});
    places_.emplace(text, entries_.begin());
    bytes_ += bytes;
  }

  // Forgets those that nobody uses, the least recently used first, until `is_enough` holds.
  template <class Condition>
  void forget_until(const Condition& is_enough) {
    MutexLock lock(mutex_);
    for (auto next = entries_.end(); next != entries_.begin() && !is_enough();) {
      auto entry = std::prev(next);
      if (entry->grammar.use_count() > 1) {
        next = entry;
      } else {
        next = forget(entry);
      }
    }
  }

 private:
  struct Entry {
    std::string text;
    std::shared_ptr<const CompiledGrammar> grammar;
    size_t bytes = 0;
  };

  // The one behind it.
  std::list<Entry>::iterator forget(std::list<Entry>::iterator entry) REQUIRES(mutex_) {
    bytes_ -= entry->bytes;
    places_.erase(entry->text);
    return entries_.erase(entry);
  }

  const size_t max_bytes_;
  Mutex mutex_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // last used first
  std::map<std::string, std::list<Entry>::iterator> places_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace droidspeak
