#include "sharing/coded_family.h"

#include "model/rope.h"

namespace droidspeak {

CodedModel coded_model_of(const ModelFamily& family) {
  auto base = family.base();
  int32_t max_positions = base->transformer->max_positions();
  return {base->model_digest, rotation_of(family.config().rope, max_positions).frequencies};
}

}  // namespace droidspeak
