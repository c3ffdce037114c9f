// What a program was built from and with.
#pragma once

#include <string>
#include <vector>

namespace droidspeak {

struct BuildVersion {
  std::string number;  // "0.2.0"
  std::string commit;  // "332c9d8e1c12", with "+changes" behind it where the tree had some
  std::vector<std::string> features;
};

}  // namespace droidspeak
