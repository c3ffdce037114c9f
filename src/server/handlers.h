// One function per endpoint, one file per function or two. Called from many connection threads at
// once.
#pragma once

#include <string>
#include <vector>

#include "server/http.h"
#include "server/openai/requests.h"
#include "server/service.h"

namespace droidspeak {

HttpResponse chat_completions(Service& service, HttpRequest& request);
HttpResponse completions(Service& service, HttpRequest& request);
HttpResponse responses(Service& service, HttpRequest& request);
HttpResponse messages(Service& service, HttpRequest& request);
HttpResponse count_message_tokens(Service& service, HttpRequest& request);
HttpResponse embeddings(Service& service, HttpRequest& request);
HttpResponse rerank(Service& service, HttpRequest& request);
HttpResponse list_models(Service& service, HttpRequest& request);
HttpResponse show_model(Service& service, HttpRequest& request);
HttpResponse tokenize(Service& service, HttpRequest& request);
HttpResponse detokenize(Service& service, HttpRequest& request);
HttpResponse tokenizer_info(Service& service, HttpRequest& request);
HttpResponse load_adapter(Service& service, HttpRequest& request);
HttpResponse unload_adapter(Service& service, HttpRequest& request);
HttpResponse health(Service& service, HttpRequest& request);
HttpResponse metrics(Service& service, HttpRequest& request);
HttpResponse show_state(Service& service, HttpRequest& request);
HttpResponse show_plan_books(Service& service, HttpRequest& request);
HttpResponse show_version(Service& service, HttpRequest& request);
HttpResponse show_page(Service& service, HttpRequest& request);

}  // namespace droidspeak
