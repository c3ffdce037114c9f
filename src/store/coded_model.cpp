#include "store/coded_model.h"

#include <cstdint>
#include <span>

#include "codec/piece.h"

namespace droidspeak {

Digest digest_of(const CodedModel& model) {
  if (model.step_factors.empty() && model.rotation.unturned_layers.empty()) return model.base;
  Sha256 hash;
  hash.add_field('b', std::as_bytes(std::span(model.base.bytes)));
  hash.add_field('s', std::as_bytes(std::span(model.step_factors)));
  hash.add_field('u', std::as_bytes(std::span(model.rotation.unturned_layers)));
  return hash.finish();
}

Digest digest_with_rotation(const CodedModel& model) {
  Sha256 hash;
  const Digest owner = digest_of(model);
  hash.add_field('o', std::as_bytes(std::span(owner.bytes)));
  hash.add_field('f', std::as_bytes(std::span(model.rotation.frequencies)));
  return hash.finish();
}

Digest digest_of_coding(const CodedModel& model) {
  Sha256 hash;
  const uint16_t version = kPieceVersion;
  hash.add_field('v', std::as_bytes(std::span(&version, 1)));
  hash.add_field('s', std::as_bytes(std::span(model.step_factors)));
  hash.add_field('u', std::as_bytes(std::span(model.rotation.unturned_layers)));
  return hash.finish();
}

}  // namespace droidspeak
