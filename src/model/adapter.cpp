#include "model/weights.h"

namespace droidspeak {
namespace {

size_t packed_bytes(const LoraLinear& linear) {
  size_t total = linear.down ? linear.down->bytes() : 0;
  for (const LoraLinear::Part& part : linear.parts) total += part.up->bytes();
  return total;
}

}  // namespace

size_t Adapter::bytes() const {
  size_t total = 0;
  for (const LoraLayer& layer : layers) {
    for (const LoraLinear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      total += packed_bytes(*linear);
    for (const ExpertLora& expert : layer.experts)
      total += packed_bytes(expert.gate_up) + packed_bytes(expert.down);
  }
  return total;
}

}  // namespace droidspeak
