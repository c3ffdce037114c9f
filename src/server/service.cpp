#include "server/service.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "server/chat/client_turn.h"
#include "server/openai/limits.h"
#include "server/plan_books.h"
#include "text/prompt_tokens.h"

namespace droidspeak {

namespace {

ApiError surely_too_long(int32_t max_model_len, size_t bytes, const char* param) {
  return bad_field(
      fmt::format("This model's maximum context length is {} tokens. However, your input of {} "
                  "bytes is longer than that. Please reduce its length.",
                  max_model_len, bytes),
      param, "context_length_exceeded");
}

// So long a request waits for others to be parsed and tokenised.
constexpr std::chrono::seconds kSlotLimit{30};
// While they are parsed, bodies take several times their size: larger ones have one place together.
constexpr size_t kLargeBody = size_t{1} << 20;
// Formats from here on are compiled one at a time.
constexpr size_t kLargeFormat = size_t{16} << 10;

// Texts from here on take turns: a word takes some twenty-five times its bytes while it is cut.
constexpr size_t kLongText = size_t{128} << 10;

int num_work_slots() {
  return 1 + static_cast<int>(std::thread::hardware_concurrency() / 2);
}

ApiResult<WorkSlots::Slot> take_slot(WorkSlots& slots,
                                     const HttpRequest& request,
                                     const char* what) {
  WorkSlots::Slot slot = slots.take(request.caller.name, request.is_connected, kSlotLimit);
  if (slot) return slot;
  if (!request.is_connected()) return status_error(499, "The client went away.");
  return status_error(
      503, fmt::format("The server is busy with the {} of other requests; try again later.", what));
}

uint64_t unpredictable_number() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Requests for a name that two models have would all go to the first.
void check_served_names(const std::vector<std::string>& names, const Engine& engine) {
  auto refuse = [](const std::string& name, const std::string& why) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("--served-model-name \"{}\": {}", name, why));
  };
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty()) refuse(name, "it is empty; expected a name");
    if (name.size() > openai::kMaxModelNameBytes) {
      refuse(name, fmt::format("it has {} bytes, and a request can name {} at most", name.size(),
                               openai::kMaxModelNameBytes));
    }
    if (!seen.insert(name).second) refuse(name, "it is given twice");
  }
  for (const auto& variant : engine.variants()) {
    if (!variant->parent.empty() && seen.contains(variant->name))
      refuse(variant->name, "a variant of the family has that name; expected another one");
  }
}

// Some templates leave system messages out, others refuse them.
bool shows_system(const ChatTemplate& chat_template) {
  constexpr const char* kProbe = "a system message";
  ChatTemplateInput input;
  input.messages = {{"system", kProbe}, {"user", "a question"}};
  input.add_generation_prompt = true;
  try {
    return chat_template.render(input).find(kProbe) != std::string::npos;
  } catch (const Failure&) {
    return false;
  }
}

}  // namespace

Service::Service(Engine& engine, const Tokenizer& tokenizer, const ServiceOptions& options)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(options),
      plan_books_(plan_books_json(engine.plan_books(), options.min_quality)),
      plan_books_tag_(entity_tag(plan_books_)),
      max_model_len_(engine.max_model_len()),
      vocab_size_(engine.config().vocab_size),
      token_bound_(tokenizer),
      client_text_(tokenizer),
      grammars_(tokenizer, vocab_size_),
      start_time_(std::chrono::duration_cast<std::chrono::seconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count()),
      work_slots_(num_work_slots()),
      prompt_budget_(openai::kAllPromptTokens),
      logprob_budget_(openai::kAllLogprobValues),
      compile_slots_(num_work_slots()),
      random_(unpredictable_number()) {
  check_served_names(options_.served_names, engine);
  const std::string& source = tokenizer.chat_template;
  if (!source.empty()) chat_template_.emplace(source);
  tool_dialect_ = find_tool_dialect(source);
  bool has_section = chat_template_ && tool_dialect_.prompt == ToolPrompt::kSection;
  if (has_section && !shows_system(*chat_template_))
    tool_dialect_.prompt = ToolPrompt::kUserSection;
  if (source.find("developer") != std::string::npos) developer_role_ = DeveloperRole::kOwn;
}

std::vector<Service::Model> Service::models() const {
  std::vector<Model> models;
  std::string base_id;
  for (const auto& variant : engine_.variants()) {
    if (!variant->parent.empty()) {
      models.push_back({variant->name, base_id.empty() ? variant->parent : base_id, variant});
      continue;
    }
    std::vector<std::string> names = options_.served_names;
    if (names.empty()) names.push_back(variant->name);
    base_id = names.front();
    for (const std::string& name : names) models.push_back({name, "", variant});
  }
  return models;
}

std::optional<Service::Model> Service::find_model(std::string_view id) const {
  std::vector<Model> all = models();
  auto found = std::ranges::find_if(all, [&](const Model& model) { return model.id == id; });
  if (found == all.end()) {
    found =
        std::ranges::find_if(all, [&](const Model& model) { return model.variant->name == id; });
  }
  if (found == all.end()) return std::nullopt;
  return *found;
}

ApiResult<WorkSlots::Slot> Service::take_work_slot(const HttpRequest& request) {
  return take_slot(request.body.size() > kLargeBody ? large_work_slot_ : work_slots_, request,
                   "text");
}

ApiResult<Service::Tokens> Service::encode_by(std::string_view text,
                                              const char* param,
                                              const std::function<Tokens()>& encode) const {
  if (token_bound_.fewest_tokens(text) > max_model_len_ + 1) {
    return surely_too_long(max_model_len_, text.size(), param);
  }
  if (text.size() < kLongText) return encode();
  MutexLock lock(long_text_);
  return encode();
}

ApiResult<std::vector<int32_t>> Service::encode(std::string_view text, const char* param) const {
  return encode_by(text, param, [&] { return tokenizer_.encode(text, SpecialTokens::kParse); });
}

ApiResult<std::vector<int32_t>> Service::encode_prompt(std::string_view text,
                                                       const char* param) const {
  auto tokens = encode(text, param);
  if (!tokens) return tokens;
  return as_prompt(tokenizer_, std::move(*tokens));
}

ApiResult<Service::ChatTokens> Service::encode_chat(openai::ChatPrompt chat) const {
  if (!chat_template_) {
    return bad_field("This model has no chat template; use /v1/completions.", "messages",
                     "unsupported_parameter");
  }
  bool has_tools = chat.tools.is_open();
  size_t bytes = has_tools ? chat.tools.json.size() : 0;
  for (const ChatTurn& turn : chat.messages) bytes += turn.bytes();
  if (bytes / token_bound_.longest_token() > static_cast<size_t>(max_model_len_)) {
    return surely_too_long(max_model_len_, bytes, "messages");
  }
  for (ChatTurn& turn : chat.messages) mark_turn(client_text_, turn);
  if (has_tools) chat.tools.json = client_text_.mark(std::move(chat.tools.json));
  ChatTemplateInput input;
  input.messages = template_messages(std::move(chat.messages), chat.tools,
                                     {tool_dialect_.prompt, developer_role_});
  if (has_tools && tool_dialect_.prompt == ToolPrompt::kTemplate) {
    input.tools_json = std::move(chat.tools.json);
  }
  input.add_generation_prompt = chat.adds_generation_prompt;
  input.bos_token = tokenizer_.bos_text;
  input.eos_token = tokenizer_.eos_text;
  input.extra_json = std::move(chat.template_arguments);
  std::string text;
  try {
    text = chat_template_->render(input);
  } catch (const Failure& failure) {
    return bad_field("The chat template refused the messages: " + std::string(failure.what()),
                     "messages");
  }
  size_t end = text.find_last_not_of(" \t\r\n");
  bool is_thinking =
      end != std::string::npos && std::string_view(text).substr(0, end + 1).ends_with("<think>");
  if (is_thinking && !chat.without_thoughts.empty()) {
    return bad_field(fmt::format("Unsupported value of '{}': this model's template begins every "
                                 "answer with thoughts.",
                                 chat.without_thoughts),
                     chat.without_thoughts, "unsupported_value");
  }
  auto tokens = encode_by(text, "messages", [&] { return client_text_.encode(text); });
  if (!tokens) return tokens.error();
  if (chat.adds_special_tokens) *tokens = as_prompt(tokenizer_, std::move(*tokens));
  using Beginning = AnswerParser::Beginning;
  return ChatTokens{std::move(*tokens), is_thinking ? Beginning::kReasoning : Beginning::kUnknown};
}

ApiResult<std::shared_ptr<const CompiledGrammar>> Service::compile(const OutputFormat& format,
                                                                   const std::string& param,
                                                                   const HttpRequest& request) {
  bool is_large = format.text.size() > kLargeFormat;
  auto slot = take_slot(is_large ? large_compile_slot_ : compile_slots_, request, "formats");
  if (!slot) return slot.error();
  auto grammar = grammars_.compile(format, request.caller.tenant);
  if (grammar) return std::move(*grammar);
  if (grammar.error().code == ErrorCode::kExhausted) return to_api_error(grammar.error());
  return bad_field(fmt::format("Invalid '{}': {}.", param, grammar.error().message), param,
                   "unsupported_value");
}

std::string_view Service::token_bytes(int32_t token) const {
  if (token < 0 || token >= tokenizer_.vocab_size()) return {};
  return tokenizer_.bytes_of(token);
}

std::string Service::new_id(std::string_view prefix) {
  MutexLock lock(mutex_);
  return fmt::format("{}-{:016x}{:016x}", prefix, random_(), random_());
}

std::string Service::new_call_id(std::string_view prefix) {
  if (call_syntax(tool_dialect_.syntax).ids == CallSyntax::Ids::kAny) return new_id(prefix);
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  MutexLock lock(mutex_);
  std::string id;
  while (id.size() < 9) id += kLetters[random_() % kLetters.size()];
  return id;
}

uint64_t Service::random_seed() {
  MutexLock lock(mutex_);
  return random_();
}

void Service::count_request(const std::string& path, int status) {
  MutexLock lock(mutex_);
  ++counts_[{path, status}];
}

std::map<std::pair<std::string, int>, uint64_t> Service::request_counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

}  // namespace droidspeak
