// How much each field of a request may hold. docs/http_api.md lists them for clients; a field over
// its limit is 400 naming it.
#pragma once

#include <cstddef>

namespace droidspeak::openai {

inline constexpr size_t kMaxModelNameBytes = 256;  // also of a sender
inline constexpr size_t kMaxPlanBytes = 64;
inline constexpr size_t kMaxSaltBytes = 256;
inline constexpr size_t kMaxUserBytes = 512;
inline constexpr size_t kMaxMetadataEntries = 16;
inline constexpr size_t kMaxMetadataKeyBytes = 64;
inline constexpr size_t kMaxMetadataValueBytes = 512;

inline constexpr size_t kMaxStops = 4;
inline constexpr size_t kMaxStopBytes = 512;
inline constexpr size_t kMaxStopTokens = 1024;
inline constexpr size_t kMaxBiases = 1024;

// What the answer must look like.
inline constexpr size_t kMaxSchemaBytes = size_t{256} << 10;
inline constexpr size_t kMaxSchemaNameBytes = 64;
inline constexpr size_t kMaxRegexBytes = 4096;
inline constexpr size_t kMaxOutputChoices = 1024;
inline constexpr size_t kMaxOutputChoiceBytes = size_t{64} << 10;  // of all together
inline constexpr size_t kMaxGrammarBytes = size_t{64} << 10;

inline constexpr size_t kMaxMessages = 8192;
inline constexpr size_t kMaxParts = 8192;  // of one message
inline constexpr size_t kMaxAuthorBytes = 256;
inline constexpr size_t kMaxTools = 512;
inline constexpr size_t kMaxToolNameBytes = 128;
inline constexpr size_t kMaxToolBytes = size_t{256} << 10;  // of one tool, as JSON
inline constexpr size_t kMaxToolsBytes = size_t{1} << 20;   // of all tools
inline constexpr size_t kMaxInstructionBytes = size_t{1} << 20;
inline constexpr size_t kMaxToolCalls = 512;  // of one message
inline constexpr size_t kMaxCallIdBytes = 256;
inline constexpr size_t kMaxTemplateArgumentBytes = size_t{64} << 10;
inline constexpr size_t kMaxTemplateArguments = 256;
inline constexpr int kMaxTemplateArgumentDepth = 16;

inline constexpr size_t kMaxPrompts = 2048;
inline constexpr size_t kMaxChoices = 2048;                     // of all prompts together
inline constexpr size_t kMaxPromptTokens = size_t{1} << 20;     // of all prompts together
inline constexpr size_t kMaxEmbeddingValues = size_t{1} << 22;  // of all texts together
inline constexpr size_t kMaxRepeatedBytes = size_t{8} << 20;    // text that an answer says again
inline constexpr size_t kMaxLogprobValues = size_t{1} << 18;    // tokens times alternatives

// Of all requests in work; what is over is 429.
inline constexpr size_t kAllPromptTokens = size_t{8} << 20;
inline constexpr size_t kChoiceTokens = 128;  // what a choice counts, beside its prompt
inline constexpr size_t kBytesPerToken = 4;   // of what an answer repeats of its request
inline constexpr size_t kAllLogprobValues = size_t{1} << 20;

inline constexpr size_t kMaxAdapterNameBytes = 128;
inline constexpr size_t kMaxAdapterPathBytes = 4096;

}  // namespace droidspeak::openai
