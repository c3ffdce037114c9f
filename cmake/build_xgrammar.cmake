# cmake -DSOURCE=... -DLIBRARY=... -DCOMPILER=... -DFLAGS=... -DLAUNCHER=... -P build_xgrammar.cmake
# Two build folders may want the same library at the same time; the second finds what the first has made.
get_filename_component(folder ${LIBRARY} DIRECTORY)
file(MAKE_DIRECTORY ${folder})
file(LOCK ${folder}/lock TIMEOUT 3600)
if(EXISTS ${LIBRARY})
  return()
endif()

# A few of its lines are changed, in a copy.
set(patched ${folder}/source)
file(REMOVE_RECURSE ${patched})
file(COPY ${SOURCE}/ DESTINATION ${patched})
function(replace_in file former new)
  file(READ ${patched}/cpp/${file} text)
  string(FIND "${text}" "${former}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${file} of this version of xgrammar has no \"${former}\": see cmake/build_xgrammar.cmake")
  endif()
  string(REPLACE "${former}" "${new}" text "${text}")
  file(WRITE ${patched}/cpp/${file} "${text}")
endfunction()
# It unrolls repetitions of a character up to 128 times, and computes the tokens that fit at each of these places: some
# 5 ms a place with 50,000 tokens. Unrolled 20 times, behind a counter, the same texts fit, and a string of bounded length
# compiles in a tenth of the time (src/grammar/bounded_string.h).
replace_in(grammar_functor.cc "static const int64_t kUnzipThreshold = 128;"
  "const int64_t kUnzipThreshold = builder_->GetGrammarExpr(grammar_expr_id).type ==
      GrammarBuilder::GrammarExprType::kCharacterClass ? 20 : 128;")
# Of a class's bounds it keeps the low byte: [\uE000-\U0010FFFF] would hold every ASCII character where it looks ahead.
replace_in(earley_parser.cc "static_cast<uint8_t>(sub_sequence[i]) <= ch" "sub_sequence[i] <= ch")
replace_in(earley_parser.cc "ch <= static_cast<uint8_t>(sub_sequence[i + 1])" "ch <= sub_sequence[i + 1]")
# Grammars with many ways to read one text keep it busy for ever. Its steps are counted, and a call that takes more of them
# than it may ends with an exception (src/grammar/step_limit.h).
replace_in(earley_parser.cc "#include <cctype>" "#include <cctype>\n#include <limits>\n#include <stdexcept>")
replace_in(earley_parser.cc "bool EarleyParser::IsCompleted() const {"
  "thread_local int64_t steps_left = std::numeric_limits<int64_t>::max();

int64_t SetStepsLeft(int64_t steps) { return std::exchange(steps_left, steps); }

static void TakeSteps(size_t steps) {
  steps_left -= static_cast<int64_t>(steps);
  if (steps_left < 0) throw std::length_error(\"it has too many ways to read a text\");
}

bool EarleyParser::IsCompleted() const {")
replace_in(earley_parser.cc "  // Check if the rule has a corresponding FSM.\n" "  TakeSteps(1);\n")
replace_in(earley_parser.cc "  // Scan all the scanable states.\n" "  TakeSteps(1 + latest_states.size());\n")
replace_in(earley_parser.cc "  for (const auto& [ref_id, parent_state] : parent_states_map) {"
  "  TakeSteps(parent_states_map.size() / 8);
  for (const auto& [ref_id, parent_state] : parent_states_map) {")
replace_in(earley_parser.cc "const auto in_vec = [&](const ParserState& state_) {"
  "const auto in_vec = [&](const ParserState& state_) {
        TakeSteps(rule_id_to_completable_states_.Back().size() / 8);")
# Whoever follows a grammar remembers what it found out about states, for each rule in a place for those of all rules: with
# a choice of 600 arrays these took 25 MB for each answer. A rule's own states lie together.
replace_in(earley_parser.h "  std::vector<std::vector<uint8_t>> fsm_state_flags_cache_;"
  "  struct FsmStateFlags {
    int32_t first = 0;
    std::vector<uint8_t> flags;
  };
  std::vector<FsmStateFlags> fsm_state_flags_cache_;")
replace_in(earley_parser.h "    if (!flags_cache.empty()) {
      XGRAMMAR_DCHECK(state_id >= 0 && state_id < static_cast<int32_t>(flags_cache.size()));
      if (flags_cache[state_id] != 0) {
        return flags_cache[state_id];
      }
    }"
  "    const auto place = static_cast<size_t>(static_cast<int64_t>(state_id) - flags_cache.first);
    if (place < flags_cache.flags.size() && flags_cache.flags[place] != 0) {
      return flags_cache.flags[place];
    }")
replace_in(earley_parser.cc "  auto& flags_cache = fsm_state_flags_cache_[rule_id];
  if (flags_cache.empty()) {
    flags_cache.resize(fsm.NumStates());
  }
  XGRAMMAR_DCHECK(state_id >= 0 && state_id < static_cast<int32_t>(flags_cache.size()));
  uint8_t& flags = flags_cache[state_id];"
  "  auto& [first, known] = fsm_state_flags_cache_[rule_id];
  if (known.empty()) first = state_id;
  if (state_id < first) {
    known.insert(known.begin(), static_cast<size_t>(first - state_id), 0);
    first = state_id;
  }
  const auto place = static_cast<size_t>(state_id - first);
  if (place >= known.size()) known.resize(place + 1);
  uint8_t& flags = known[place];")

set(jobs $ENV{CMAKE_BUILD_PARALLEL_LEVEL})
if(NOT jobs)
  cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)
endif()
# -O2 compiles in less time than the -O3 that it asks for.
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${patched} -B ${folder}/build -DCMAKE_BUILD_TYPE=Release
          -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
          "-DCMAKE_CXX_FLAGS=${FLAGS}" "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG"
          -DXGRAMMAR_BUILD_PYTHON_BINDINGS=OFF -DXGRAMMAR_BUILD_CXX_TESTS=OFF
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${folder}/build --target xgrammar -j ${jobs}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${folder}/build/libxgrammar.a ${LIBRARY})
file(REMOVE_RECURSE ${folder}/build ${patched})
