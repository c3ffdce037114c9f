// A parsed template: plain nodes, owned from the top, never changed after parsing.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

struct Expression;
struct Statement;
using ExpressionRef = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionRef> positional;
  std::vector<std::pair<std::string, ExpressionRef>> named;
  ExpressionRef spread_positional;  // f(*list); null when there is none
  ExpressionRef spread_named;       // f(**dict)
};

struct Constant {
  Value value;
};

struct Name {
  std::string name;
};

struct SequenceLiteral {
  SequenceKind kind;
  std::vector<ExpressionRef> items;
};

struct DictLiteral {
  std::vector<std::pair<ExpressionRef, ExpressionRef>> entries;
};
enum class UnaryOperator { kNot, kNegate, kPlus };

struct Unary {
  UnaryOperator operation;
  ExpressionRef operand;
};
enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

struct Binary {
  BinaryOperator operation;
  ExpressionRef left;
  ExpressionRef right;
};
enum class LogicalOperator { kAnd, kOr };

struct Logical {
  LogicalOperator operation;
  ExpressionRef left;
  ExpressionRef right;
};

// a ~ b ~ c
struct Concatenation {
  std::vector<ExpressionRef> parts;
};
enum class ComparisonOperator {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

// a < b < c holds when each neighbouring pair does.
struct Comparison {
  ExpressionRef first;
  std::vector<std::pair<ComparisonOperator, ExpressionRef>> rest;
};

// value if condition else otherwise; `otherwise` may be null.
struct Conditional {
  ExpressionRef condition;
  ExpressionRef value;
  ExpressionRef otherwise;
};

struct Filter {
  ExpressionRef input;
  std::string name;
  CallArguments arguments;
};

struct Test {
  ExpressionRef input;
  std::string name;
  CallArguments arguments;
};

struct Attribute {
  ExpressionRef object;
  std::string name;
};

struct Subscript {
  ExpressionRef object;
  ExpressionRef key;
};

// object[start:stop:step]; each part may be null.
struct Slice {
  ExpressionRef object;
  ExpressionRef start;
  ExpressionRef stop;
  ExpressionRef step;
};

struct Call {
  ExpressionRef callee;
  CallArguments arguments;
};

struct Expression {
  int line = 1;
  int depth = 1;  // 1 + the deepest child
  std::variant<Constant,
               Name,
               SequenceLiteral,
               DictLiteral,
               Unary,
               Binary,
               Logical,
               Concatenation,
               Comparison,
               Conditional,
               Filter,
               Test,
               Attribute,
               Subscript,
               Slice,
               Call>
      node;
};

// What is assigned to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;      // of the namespace `name`; empty for a plain name
  std::vector<Target> parts;  // not empty: unpack into these
};

struct Macro {
  struct Parameter {
    std::string name;
    ExpressionRef fallback;  // null when it has none
  };

  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  // Jinja hands these three over only to bodies that mention them.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

// The variable under which a {% filter %} or {% set %} block's own text stands in its filter chain.
inline constexpr const char* kBlockText = "<block text>";

struct TextOutput {
  Value text;
};

struct Output {
  ExpressionRef value;
};

struct For {
  Target target;
  ExpressionRef items;
  ExpressionRef condition;  // may be null
  Block body;
  Block otherwise;
};

struct If {
  std::vector<std::pair<ExpressionRef, Block>> branches;
  Block otherwise;
};

struct Set {
  Target target;
  ExpressionRef value;
};

struct SetBlock {
  Target target;
  ExpressionRef filtered;  // over kBlockText
  Block body;
};

struct MacroDefinition {
  Macro macro;
};

struct CallBlock {
  Macro caller;
  ExpressionRef call;  // its node is a Call
};

struct FilterBlock {
  ExpressionRef filtered;  // over kBlockText
  Block body;
};

struct With {
  std::vector<std::pair<Target, ExpressionRef>> variables;
  Block body;
};

struct Break {};

struct Continue {};

struct Statement {
  int line = 1;
  std::variant<TextOutput,
               Output,
               For,
               If,
               Set,
               SetBlock,
               MacroDefinition,
               CallBlock,
               FilterBlock,
               With,
               Break,
               Continue>
      node;
};

}  // namespace droidspeak::jinja
