#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "server/embedder.h"
#include "server/handlers.h"
#include "server/openai/embedding_request.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

// The query first, then the documents, which `wanted` keeps only where the answer shows them.
TextsToEmbed texts_of(openai::RerankRequest& wanted) {
  TextsToEmbed texts;
  texts.model = wanted.model;
  texts.texts.emplace_back(wanted.query);
  texts.params.emplace_back("query");
  for (size_t i = 0; i < wanted.documents.size(); ++i) {
    texts.texts.emplace_back(wanted.documents[i]);
    texts.params.push_back(fmt::format("documents[{}]", i));
    if (wanted.returns_documents) texts.kept_bytes += wanted.documents[i].size();
  }
  if (!wanted.returns_documents) wanted.documents = {};
  texts.adds_special_tokens = wanted.adds_special_tokens;
  texts.priority = wanted.priority;
  return texts;
}

// Of embeddings of length 1: the cosine of the angle between them.
double similarity(const std::vector<float>& a, const std::vector<float>& b) {
  return std::clamp(std::inner_product(a.begin(), a.end(), b.begin(), 0.0), -1.0, 1.0);
}

ApiResult<HttpResponse> answer_rerank(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_rerank_request);
  if (!body) return body.error();
  openai::RerankRequest& wanted = body->wanted;
  auto embedded = embed_texts(service, texts_of(wanted), request, std::move(body->slot));
  if (!embedded) return embedded.error();
  std::vector<double> scores;
  for (size_t i = 1; i < embedded->embeddings.size(); ++i)
    scores.push_back(similarity(embedded->embeddings.front(), embedded->embeddings[i]));
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(wanted.num_results);
  JsonWriter json;
  json.begin_object().key("id").text(service.new_id("rerank")).key("model").text(wanted.model);
  json.key("results").begin_array();
  for (size_t index : order) {
    json.begin_object().key("index").unsigned_integer(index);
    if (wanted.returns_documents) {
      json.key("document").begin_object();
      json.key("text").text(wanted.documents[index]).end_object();
    }
    json.key("relevance_score").number(scores[index]).end_object();
  }
  json.end_array();
  return with_usage(std::move(json), *embedded);
}

}  // namespace

HttpResponse rerank(Service& service, HttpRequest& request) {
  ApiResult<HttpResponse> response = answer_rerank(service, request);
  return response ? std::move(*response) : error_response(response.error());
}

}  // namespace droidspeak
