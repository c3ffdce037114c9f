#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include "text/jinja/functions.h"
#include "text/jinja/interpreter_nesting.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

const Value* Scope::find(const std::string& name) const {
  auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

void Scope::set(const std::string& name, Value value) {
  variables.insert_or_assign(name, std::move(value));
}

Interpreter::Interpreter(Context& context, std::unordered_map<std::string, Value> variables)
    : context_(context), scope_(std::make_shared<Scope>()) {
  scope_->variables = std::move(variables);
}

Interpreter::~Interpreter() {
  for (auto& space : namespaces_) space->attributes.clear();
  for (auto& scope : captured_scopes_) scope->variables.clear();
}

std::string Interpreter::run(const Block& block) {
  TextBuilder builder(context_.work);
  output_ = &builder;
  execute(block);
  return builder.take();
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  Nesting nesting(*this);
  for (const Statement& statement : block) {
    context_.work.step();
    line_ = statement.line;
    Flow flow = std::visit([this](const auto& node) { return execute_node(node); }, statement.node);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

void Interpreter::print(const Value& value) {
  if (const std::string* text = value.text()) {
    output_->append(*text);
  } else if (!value.is_undefined()) {
    output_->append(to_repr(context_, value));
  }
}

Interpreter::Flow Interpreter::execute_node(const TextOutput& node) {
  print(node.text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const Output& node) {
  print(evaluate(*node.value));
  return Flow::kNext;
}

SequenceRef Interpreter::loop_items(const For& node) {
  SequenceRef items = iterate(context_, evaluate(*node.items));
  if (!node.condition) return items;
  std::vector<Value> chosen;
  for (const Value& item : items->items) {
    InnerScope scope(*this);
    assign(node.target, item);
    if (is_true(evaluate(*node.condition))) chosen.push_back(item);
  }
  return *make_sequence(context_, SequenceKind::kList, std::move(chosen)).get<SequenceRef>();
}

Interpreter::Flow Interpreter::execute_node(const For& node) {
  auto loop = std::make_shared<Loop>();
  loop->items = loop_items(node);
  if (loop->items->items.empty()) {
    InnerScope scope(*this);
    return execute(node.otherwise);
  }
  for (const Value& item : loop->items->items) {
    context_.work.step();
    InnerScope scope(*this);
    scope_->set("loop", Value(loop));
    assign(node.target, item);
    if (execute(node.body) == Flow::kBreak) break;
    ++loop->index;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const If& node) {
  for (const auto& [condition, body] : node.branches) {
    if (is_true(evaluate(*condition))) return execute(body);
  }
  return execute(node.otherwise);
}

Interpreter::Flow Interpreter::execute_node(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const SetBlock& node) {
  assign(node.target, capture_filtered(node.body, *node.filtered));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const MacroDefinition& node) {
  scope_->set(node.macro.name, make_macro(node.macro));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const CallBlock& node) {
  const auto& call_node = std::get<Call>(node.call->node);
  Value callee = evaluate(*call_node.callee);
  Arguments arguments = evaluate_arguments(call_node.arguments);
  arguments.named.emplace_back("caller", make_macro(node.caller));
  print(call(callee, std::move(arguments)));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const FilterBlock& node) {
  print(capture_filtered(node.body, *node.filtered));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const With& node) {
  std::vector<Value> values;
  for (const auto& [target, value] : node.variables) values.push_back(evaluate(*value));
  InnerScope scope(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(node.variables[i].first, values[i]);
  return execute(node.body);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    SequenceRef items = iterate(context_, value);
    if (items->items.size() != target.parts.size()) {
      throw TemplateError(fmt::format("cannot unpack {} values into {} names", items->items.size(),
                                      target.parts.size()));
    }
    for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, value);
  Value object = evaluate_node(Name{target.name});
  const auto* space = object.get<std::shared_ptr<Namespace>>();
  if (space == nullptr) {
    throw TemplateError(
        fmt::format("cannot set {}.{}: only namespace() values have attributes to set", target.name,
                    target.attribute));
  }
  require_attribute_name(target.attribute);
  context_.work.allocate(sizeof(Value));
  (*space)->attributes[target.attribute] = value;
}

Value Interpreter::capture(const Block& block) {
  TextBuilder builder(context_.work);
  TextBuilder* outer = std::exchange(output_, &builder);
  execute(block);
  output_ = outer;
  return make_text(context_, builder.take());
}

Value Interpreter::capture_filtered(const Block& body, const Expression& filtered) {
  InnerScope scope(*this);
  Value text = capture(body);
  scope_->set(kBlockText, std::move(text));
  return evaluate(filtered);
}

}  // namespace droidspeak::jinja
