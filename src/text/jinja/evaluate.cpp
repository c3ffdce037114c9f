// Expressions and calls of the interpreter.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/functions.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/interpreter_nesting.h"
#include "text/jinja/operators.h"
#include "text/jinja/predicates.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

Value Interpreter::evaluate(const Expression& expression) {
  Nesting nesting(*this);
  context_.work.step();
  line_ = expression.line;
  return std::visit([this](const auto& node) { return evaluate_node(node); }, expression.node);
}

Value Interpreter::evaluate_node(const Name& node) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* value = scope->find(node.name)) return *value;
  }
  if (NativeFunction function = find_function(node.name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = node.name;
    callable->native = function;
    return Value(std::shared_ptr<const Callable>(std::move(callable)));
  }
  return make_undefined(fmt::format("'{}' is undefined", node.name));
}

Value Interpreter::evaluate_node(const SequenceLiteral& node) {
  std::vector<Value> items;
  for (const auto& item : node.items) items.push_back(evaluate(*item));
  return make_sequence(context_, node.kind, std::move(items));
}

Value Interpreter::evaluate_node(const DictLiteral& node) {
  Dict dict;
  for (const auto& [key, value] : node.entries) dict.set(evaluate(*key), evaluate(*value));
  return make_dict(context_, std::move(dict));
}

Value Interpreter::evaluate_node(const Unary& node) {
  Value operand = evaluate(*node.operand);
  switch (node.operation) {
    case UnaryOperator::kNot:
      return Value(!is_true(operand));
    case UnaryOperator::kNegate:
      return negate(operand);
    case UnaryOperator::kPlus:
      return operand.is<double>() ? operand : negate(negate(operand));
  }
  return Value();
}

Value Interpreter::evaluate_node(const Binary& node) {
  Value left = evaluate(*node.left);
  Value right = evaluate(*node.right);
  return apply_binary(context_, node.operation, left, right);
}

Value Interpreter::evaluate_node(const Logical& node) {
  Value left = evaluate(*node.left);
  bool is_decided = is_true(left) == (node.operation == LogicalOperator::kOr);
  return is_decided ? left : evaluate(*node.right);
}

Value Interpreter::evaluate_node(const Concatenation& node) {
  TextBuilder builder(context_.work);
  for (const auto& part : node.parts) {
    Value value = evaluate(*part);
    builder.append(value.is_text() ? *value.text() : to_text(context_, value));
  }
  return make_text(context_, builder.take());
}

Value Interpreter::evaluate_node(const Comparison& node) {
  Value left = evaluate(*node.first);
  for (const auto& [operation, operand] : node.rest) {
    Value right = evaluate(*operand);
    if (!holds(operation, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

bool Interpreter::holds(ComparisonOperator operation, const Value& left, const Value& right) {
  switch (operation) {
    case ComparisonOperator::kEqual:
      return equals(context_, left, right);
    case ComparisonOperator::kNotEqual:
      return !equals(context_, left, right);
    case ComparisonOperator::kLess:
      return compare(context_, left, right) < 0;
    case ComparisonOperator::kLessEqual:
      return compare(context_, left, right) <= 0;
    case ComparisonOperator::kGreater:
      return compare(context_, left, right) > 0;
    case ComparisonOperator::kGreaterEqual:
      return compare(context_, left, right) >= 0;
    case ComparisonOperator::kIn:
      return contains(context_, right, left);
    case ComparisonOperator::kNotIn:
      return !contains(context_, right, left);
  }
  return false;
}

Value Interpreter::evaluate_node(const Conditional& node) {
  if (is_true(evaluate(*node.condition))) return evaluate(*node.value);
  if (node.otherwise) return evaluate(*node.otherwise);
  return make_undefined("the condition of an inline if without else is false");
}

Value Interpreter::evaluate_node(const Filter& node) {
  Value input = evaluate(*node.input);
  return apply_filter(context_, node.name, input, evaluate_arguments(node.arguments));
}

Value Interpreter::evaluate_node(const Test& node) {
  Value input = evaluate(*node.input);
  return Value(apply_test(context_, node.name, input, evaluate_arguments(node.arguments)));
}

Value Interpreter::evaluate_node(const Attribute& node) {
  return get_attribute(context_, evaluate(*node.object), node.name);
}

Value Interpreter::evaluate_node(const Subscript& node) {
  Value object = evaluate(*node.object);
  return get_item(context_, object, evaluate(*node.key));
}

std::optional<int64_t> Interpreter::slice_bound(const ExpressionRef& bound) {
  if (!bound) return std::nullopt;
  Value value = evaluate(*bound);
  if (value.is_none()) return std::nullopt;
  if (auto whole = value.integer()) return whole;
  throw TemplateError(fmt::format("a slice goes by integers, not a {}", type_name(value)));
}

Value Interpreter::evaluate_node(const Slice& node) {
  Value object = evaluate(*node.object);
  SliceBounds bounds{slice_bound(node.start), slice_bound(node.stop), slice_bound(node.step)};
  return slice(context_, object, bounds);
}

Value Interpreter::evaluate_node(const Call& node) {
  Value callee = evaluate(*node.callee);
  return call(callee, evaluate_arguments(node.arguments));
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments result;
  for (const auto& value : arguments.positional) result.positional.push_back(evaluate(*value));
  for (const auto& [name, value] : arguments.named)
    result.named.emplace_back(name, evaluate(*value));
  if (arguments.spread_positional) {
    SequenceRef items = iterate(context_, evaluate(*arguments.spread_positional));
    context_.work.allocate(items->items.size() * sizeof(Value));
    result.positional.insert(result.positional.end(), items->items.begin(), items->items.end());
  }
  if (arguments.spread_named) {
    Value named = evaluate(*arguments.spread_named);
    if (named.dict() == nullptr)
      throw TemplateError(fmt::format("** needs a dict, not a {}", type_name(named)));
    for (const auto& [key, value] : named.dict()->entries()) {
      result.named.emplace_back(to_text(context_, key), value);
    }
  }
  return result;
}

Value Interpreter::make_macro(const Macro& macro) {
  context_.work.allocate(sizeof(Callable) + sizeof(Scope));
  auto callable = std::make_shared<Callable>();
  callable->name = macro.name;
  callable->macro = &macro;
  callable->scope = scope_;
  captured_scopes_.push_back(scope_);
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  if (const auto* undefined = callee.get<Undefined>()) throw TemplateError(*undefined->reason);
  const auto* callable = callee.get<std::shared_ptr<const Callable>>();
  if (callable == nullptr)
    throw TemplateError(fmt::format("a {} cannot be called", type_name(callee)));
  if ((*callable)->macro != nullptr) return call_macro(**callable, std::move(arguments));
  Value result = (*callable)->native(context_, (*callable)->self, arguments);
  if (const auto* space = result.get<std::shared_ptr<Namespace>>()) namespaces_.push_back(*space);
  return result;
}

Value Interpreter::call_macro(const Callable& callable, Arguments arguments) {
  Nesting nesting(*this);
  int line = line_;
  InnerScope scope(*this, callable.scope);
  bind_extras(*callable.macro, arguments);
  bind_parameters(*callable.macro, arguments);
  Value text = capture(callable.macro->body);
  line_ = line;
  return text;
}

// What is left in `arguments` afterwards belongs to the macro's own parameters.
void Interpreter::bind_extras(const Macro& macro, Arguments& arguments) {
  auto is_parameter = [&](const std::string& name) {
    for (size_t i = arguments.positional.size(); i < macro.parameters.size(); ++i) {
      if (macro.parameters[i].name == name) return true;
    }
    return false;
  };
  if (macro.uses_caller) scope_->set("caller", make_undefined("no caller defined"));
  Dict extras;
  for (auto& [name, value] : arguments.named) {
    if (is_parameter(name)) continue;
    if (name == "caller" && macro.uses_caller) {
      scope_->set("caller", value);
    } else if (macro.uses_kwargs) {
      extras.set(make_text(context_, name), value);
    } else {
      throw TemplateError(fmt::format("macro '{}' has no parameter '{}'", macro.name, name));
    }
  }
  if (macro.uses_kwargs) scope_->set("kwargs", make_dict(context_, std::move(extras)));
  size_t known = std::min(macro.parameters.size(), arguments.positional.size());
  std::vector<Value> rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(known),
                          arguments.positional.end());
  if (!rest.empty() && !macro.uses_varargs) {
    throw TemplateError(
        fmt::format("macro '{}' takes at most {} arguments", macro.name, macro.parameters.size()));
  }
  if (macro.uses_varargs)
    scope_->set("varargs", make_sequence(context_, SequenceKind::kTuple, std::move(rest)));
}

void Interpreter::bind_parameters(const Macro& macro, Arguments& arguments) {
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Macro::Parameter& parameter = macro.parameters[i];
    if (i < arguments.positional.size()) {
      scope_->set(parameter.name, arguments.positional[i]);
      continue;
    }
    auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                              [&](const auto& entry) { return entry.first == parameter.name; });
    if (named != arguments.named.end()) {
      scope_->set(parameter.name, named->second);
    } else if (parameter.fallback) {
      scope_->set(parameter.name, evaluate(*parameter.fallback));
    } else {
      scope_->set(parameter.name,
                  make_undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
}

}  // namespace droidspeak::jinja
