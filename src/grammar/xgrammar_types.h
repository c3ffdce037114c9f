// What of xgrammar stands behind our types. For this folder's sources only: its headers are large.
#pragma once

#include <xgrammar/xgrammar.h>

#include "grammar/compiled_grammar.h"

namespace droidspeak {

struct CompiledGrammar::Compiled {
  xgrammar::CompiledGrammar grammar;
};

}  // namespace droidspeak
