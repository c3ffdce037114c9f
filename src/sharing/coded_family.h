// What the store's codec needs to know of a family.
#pragma once

#include "model/family.h"
#include "store/coded_model.h"

namespace droidspeak {

CodedModel coded_model_of(const ModelFamily& family);

}  // namespace droidspeak
