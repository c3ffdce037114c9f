// Schemas of tools' arguments. Arguments are objects: a schema that lets anything else through is
// refused, one that leaves it open is told so.
#pragma once

#include <string>

#include "server/openai/fields.h"

namespace droidspeak::openai {

// The schema in `field` of `tool`, which is an object there. Reports one that is too large to be
// looked at, or that allows something else than objects.
std::string read_arguments_schema(Fields& tool, const std::string& field, const std::string& name);

}  // namespace droidspeak::openai
