// Bodies of the calls that embed texts: OpenAI's embeddings, and rerank as vLLM and others have it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/openai/requests.h"

namespace droidspeak::openai {

enum class EmbeddingFormat { kFloat, kBase64 };

struct EmbeddingRequest {
  std::string model;
  std::vector<Prompt> inputs;  // at least one
  EmbeddingFormat format = EmbeddingFormat::kFloat;
  std::optional<int64_t> dimensions;
  bool adds_special_tokens = true;
  int32_t priority = 0;
};

struct RerankRequest {
  std::string model;
  std::string query;
  std::vector<std::string> documents;  // at least one
  size_t num_results = 0;              // at most as many as documents
  bool returns_documents = true;
  bool adds_special_tokens = true;
  int32_t priority = 0;
};

ApiResult<EmbeddingRequest> parse_embedding_request(std::string body);
ApiResult<RerankRequest> parse_rerank_request(std::string body);

}  // namespace droidspeak::openai
