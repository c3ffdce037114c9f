#include "store/coded_model.h"

#include <span>

namespace droidspeak {

Digest digest_of(const CodedModel& model) {
  if (model.step_factors.empty() && model.rotation.unturned_layers.empty()) return model.base;
  Sha256 hash;
  hash.add_field('b', std::as_bytes(std::span(model.base.bytes)));
  hash.add_field('s', std::as_bytes(std::span(model.step_factors)));
  hash.add_field('u', std::as_bytes(std::span(model.rotation.unturned_layers)));
  return hash.finish();
}

Digest digest_of_steps(const CodedModel& model) {
  if (model.step_factors.empty()) return {};
  return sha256(std::as_bytes(std::span(model.step_factors)));
}

}  // namespace droidspeak
