// Where an adapter lies.
#pragma once

#include <filesystem>
#include <utility>

namespace droidspeak {

struct AdapterPath {
  // What the owner of the machine names is read wherever it lies.
  AdapterPath(std::filesystem::path place)  // NOLINT(google-explicit-constructor)
      : path(std::move(place)) {}

  // What a client names: relative paths start at the root, and nothing outside of it is read.
  AdapterPath(std::filesystem::path below, std::filesystem::path place)
      : path(std::move(place)), root(std::move(below)) {}

  std::filesystem::path path;  // a PEFT folder or a GGUF file; messages name it like this
  std::filesystem::path root;  // empty: none
};

}  // namespace droidspeak
