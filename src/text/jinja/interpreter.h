// Runs a parsed template once. Single use, single thread; the template may be shared by many.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace droidspeak::jinja {

// Variables of the template, a loop pass, a macro call or a block.
struct Scope {
  std::shared_ptr<Scope> parent;                     // shared with the macros defined inside
  std::unordered_map<std::string, Value> variables;  // requests may bring many

  const Value* find(const std::string& name) const;
  void set(const std::string& name, Value value);
};

class Interpreter {
 public:
  Interpreter(Context& context, std::unordered_map<std::string, Value> variables);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws TemplateError; line() then says where.
  std::string run(const Block& block);

  int line() const { return line_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Nesting;
  class InnerScope;

  Flow execute(const Block& block);
  Flow execute_node(const TextOutput& node);
  Flow execute_node(const Output& node);
  Flow execute_node(const For& node);
  Flow execute_node(const If& node);
  Flow execute_node(const Set& node);
  Flow execute_node(const SetBlock& node);
  Flow execute_node(const MacroDefinition& node);
  Flow execute_node(const CallBlock& node);
  Flow execute_node(const FilterBlock& node);
  Flow execute_node(const With& node);

  Flow execute_node(const Break&) { return Flow::kBreak; }

  Flow execute_node(const Continue&) { return Flow::kContinue; }

  SequenceRef loop_items(const For& node);
  void assign(const Target& target, const Value& value);
  void print(const Value& value);
  // Runs the block and gives its text instead of printing it.
  Value capture(const Block& block);
  Value capture_filtered(const Block& body, const Expression& filtered);

  Value evaluate(const Expression& expression);

  Value evaluate_node(const Constant& node) { return node.value; }

  Value evaluate_node(const Name& node);
  Value evaluate_node(const SequenceLiteral& node);
  Value evaluate_node(const DictLiteral& node);
  Value evaluate_node(const Unary& node);
  Value evaluate_node(const Binary& node);
  Value evaluate_node(const Logical& node);
  Value evaluate_node(const Concatenation& node);
  Value evaluate_node(const Comparison& node);
  Value evaluate_node(const Conditional& node);
  Value evaluate_node(const Filter& node);
  Value evaluate_node(const Test& node);
  Value evaluate_node(const Attribute& node);
  Value evaluate_node(const Subscript& node);
  Value evaluate_node(const Slice& node);
  Value evaluate_node(const Call& node);
  bool holds(ComparisonOperator operation, const Value& left, const Value& right);
  std::optional<int64_t> slice_bound(const ExpressionRef& bound);
  Arguments evaluate_arguments(const CallArguments& arguments);

  Value make_macro(const Macro& macro);
  Value call(const Value& callee, Arguments arguments);
  Value call_macro(const Callable& callable, Arguments arguments);
  void bind_parameters(const Macro& macro, Arguments& arguments);
  void bind_extras(const Macro& macro, Arguments& arguments);

  Context& context_;
  std::shared_ptr<Scope> scope_;
  TextBuilder* output_ = nullptr;
  int depth_ = 0;
  int line_ = 1;
  // Emptied at the end: these are the only things that can hold on to themselves.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_scopes_;
};

}  // namespace droidspeak::jinja
