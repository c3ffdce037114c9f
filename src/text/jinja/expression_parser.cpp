#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace droidspeak::jinja {

namespace {

constexpr int kMaxNesting = 100;
constexpr int kMaxExpressionDepth = 200;

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kString:
      return "a string";
    default:
      return fmt::format("'{}'", token.text);
  }
}

Value make_literal(std::string text) {
  return Value(Text(std::make_shared<const std::string>(std::move(text))));
}

int depth_of_expression(const ExpressionRef& expression) {
  return expression ? expression->depth : 0;
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) {
    parser_.fail(fmt::format("nests deeper than {} levels", kMaxNesting));
  }
  ++parser_.nesting_;
}

const Token& ExpressionParser::following() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

Token ExpressionParser::take() {
  Token token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool ExpressionParser::skip_operator(std::string_view name) {
  if (!current().is_operator(name)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void ExpressionParser::expect_operator(std::string_view name) {
  if (!skip_operator(name)) fail_unexpected(fmt::format("'{}'", name));
}

std::string ExpressionParser::expect_name() {
  if (!current().is(TokenKind::kName)) fail_unexpected("a name");
  return take().text;
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_unexpected(fmt::format("'{}'", name));
}

void ExpressionParser::expect(TokenKind kind, std::string_view description) {
  if (!current().is(kind)) fail_unexpected(description);
  take();
}

void ExpressionParser::fail(const std::string& message) const {
  throw SyntaxError{current().line, message};
}

void ExpressionParser::fail_unexpected(std::string_view wanted) const {
  fail(fmt::format("expected {}, found {}", wanted, describe(current())));
}

template <class Node>
ExpressionRef ExpressionParser::make(int line,
                                     Node node,
                                     std::initializer_list<const Expression*> children) {
  auto expression = std::make_unique<Expression>();
  expression->line = line;
  for (const Expression* child : children) {
    if (child != nullptr) expression->depth = std::max(expression->depth, 1 + child->depth);
  }
  if constexpr (requires { node.arguments; }) {
    expression->depth = std::max(expression->depth, 1 + depth_of_arguments(node.arguments));
  }
  if (expression->depth > kMaxExpressionDepth) {
    fail(fmt::format("expression is longer than {} operations in a row", kMaxExpressionDepth));
  }
  expression->node = std::move(node);
  return expression;
}

int ExpressionParser::depth_of_all(const std::vector<ExpressionRef>& expressions) {
  int depth = 0;
  for (const auto& expression : expressions)
    depth = std::max(depth, depth_of_expression(expression));
  return depth;
}

int ExpressionParser::depth_of_arguments(const CallArguments& arguments) {
  int depth = std::max({depth_of_all(arguments.positional),
                        depth_of_expression(arguments.spread_positional),
                        depth_of_expression(arguments.spread_named)});
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth);
  return depth;
}

bool ExpressionParser::ends_tuple() const {
  return current().is(TokenKind::kOutputEnd) || current().is(TokenKind::kBlockEnd) ||
         current().is(TokenKind::kEnd) || current().is_operator(")");
}

ExpressionRef ExpressionParser::parse_tuple(Conditionals conditionals) {
  int line = current().line;
  SequenceLiteral tuple{SequenceKind::kTuple, {}};
  bool has_comma = false;
  while (!ends_tuple()) {
    tuple.items.push_back(conditionals == Conditionals::kAllowed ? parse_expression() : parse_or());
    if (!skip_operator(",")) break;
    has_comma = true;
  }
  if (!has_comma) {
    if (tuple.items.empty()) fail_unexpected("an expression");
    return std::move(tuple.items.front());
  }
  const Expression* deepest = nullptr;
  for (const auto& item : tuple.items) {
    if (deepest == nullptr || item->depth > deepest->depth) deepest = item.get();
  }
  return make(line, std::move(tuple), {deepest});
}

ExpressionRef ExpressionParser::parse_expression() {
  Nesting nesting(*this);
  int line = current().line;
  ExpressionRef value = parse_or();
  while (skip_name("if")) {
    ExpressionRef condition = parse_or();
    ExpressionRef otherwise;
    if (skip_name("else")) otherwise = parse_expression();
    auto children = {condition.get(), value.get(), otherwise.get()};
    value = make(line, Conditional{std::move(condition), std::move(value), std::move(otherwise)},
                 children);
  }
  return value;
}

ExpressionRef ExpressionParser::parse_or() {
  int line = current().line;
  ExpressionRef left = parse_and();
  while (skip_name("or")) {
    ExpressionRef right = parse_and();
    auto children = {left.get(), right.get()};
    left = make(line, Logical{LogicalOperator::kOr, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::parse_and() {
  int line = current().line;
  ExpressionRef left = parse_not();
  while (skip_name("and")) {
    ExpressionRef right = parse_not();
    auto children = {left.get(), right.get()};
    left = make(line, Logical{LogicalOperator::kAnd, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::parse_not() {
  int line = current().line;
  if (!skip_name("not")) return parse_comparison();
  Nesting nesting(*this);
  ExpressionRef operand = parse_not();
  auto children = {operand.get()};
  return make(line, Unary{UnaryOperator::kNot, std::move(operand)}, children);
}

std::optional<ComparisonOperator> ExpressionParser::take_comparison() {
  static constexpr std::pair<std::string_view, ComparisonOperator> kOperators[] = {
      {"==", ComparisonOperator::kEqual},  {"!=", ComparisonOperator::kNotEqual},
      {"<", ComparisonOperator::kLess},    {"<=", ComparisonOperator::kLessEqual},
      {">", ComparisonOperator::kGreater}, {">=", ComparisonOperator::kGreaterEqual}};
  for (const auto& [text, operation] : kOperators) {
    if (skip_operator(text)) return operation;
  }
  if (skip_name("in")) return ComparisonOperator::kIn;
  if (current().is_name("not") && following().is_name("in")) {
    take();
    take();
    return ComparisonOperator::kNotIn;
  }
  return std::nullopt;
}

ExpressionRef ExpressionParser::parse_comparison() {
  int line = current().line;
  Comparison comparison{parse_sum(), {}};
  const Expression* deepest = comparison.first.get();
  while (auto operation = take_comparison()) {
    comparison.rest.emplace_back(*operation, parse_sum());
    const Expression* last = comparison.rest.back().second.get();
    if (last->depth > deepest->depth) deepest = last;
  }
  if (comparison.rest.empty()) return std::move(comparison.first);
  return make(line, std::move(comparison), {deepest});
}

ExpressionRef ExpressionParser::parse_sum() {
  int line = current().line;
  ExpressionRef left = parse_concatenation();
  while (current().is_operator("+") || current().is_operator("-")) {
    auto operation = take().text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    ExpressionRef right = parse_concatenation();
    auto children = {left.get(), right.get()};
    left = make(line, Binary{operation, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::parse_concatenation() {
  int line = current().line;
  Concatenation concatenation;
  concatenation.parts.push_back(parse_product());
  const Expression* deepest = concatenation.parts.back().get();
  while (skip_operator("~")) {
    concatenation.parts.push_back(parse_product());
    if (concatenation.parts.back()->depth > deepest->depth)
      deepest = concatenation.parts.back().get();
  }
  if (concatenation.parts.size() == 1) return std::move(concatenation.parts.front());
  return make(line, std::move(concatenation), {deepest});
}

ExpressionRef ExpressionParser::parse_product() {
  static constexpr std::pair<std::string_view, BinaryOperator> kOperators[] = {
      {"*", BinaryOperator::kMultiply},
      {"/", BinaryOperator::kDivide},
      {"//", BinaryOperator::kFloorDivide},
      {"%", BinaryOperator::kModulo}};
  int line = current().line;
  ExpressionRef left = parse_power();
  while (true) {
    const auto* found =
        std::find_if(std::begin(kOperators), std::end(kOperators),
                     [&](const auto& entry) { return current().is_operator(entry.first); });
    if (found == std::end(kOperators)) return left;
    take();
    ExpressionRef right = parse_power();
    auto children = {left.get(), right.get()};
    left = make(line, Binary{found->second, std::move(left), std::move(right)}, children);
  }
}

ExpressionRef ExpressionParser::parse_power() {
  int line = current().line;
  ExpressionRef left = parse_unary(Filters::kAllowed);
  while (skip_operator("**")) {
    ExpressionRef right = parse_unary(Filters::kAllowed);
    auto children = {left.get(), right.get()};
    left = make(line, Binary{BinaryOperator::kPower, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::parse_unary(Filters filters) {
  Nesting nesting(*this);
  int line = current().line;
  ExpressionRef expression;
  if (current().is_operator("-") || current().is_operator("+")) {
    auto operation = take().text == "-" ? UnaryOperator::kNegate : UnaryOperator::kPlus;
    ExpressionRef operand = parse_unary(Filters::kStopBefore);
    auto children = {operand.get()};
    expression = make(line, Unary{operation, std::move(operand)}, children);
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return filters == Filters::kAllowed ? parse_filters_and_tests(std::move(expression))
                                      : std::move(expression);
}

ExpressionRef ExpressionParser::parse_primary() {
  int line = current().line;
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    case TokenKind::kString: {
      std::string text;
      while (current().is(TokenKind::kString)) text += take().text;
      return make(line, Constant{make_literal(std::move(text))}, {});
    }
    default:
      break;
  }
  if (current().is_operator("(")) return parse_parentheses();
  if (current().is_operator("[")) return parse_list();
  if (current().is_operator("{")) return parse_dict();
  fail_unexpected("an expression");
}

ExpressionRef ExpressionParser::parse_name() {
  int line = current().line;
  const std::string& name = current().text;  // stays in tokens_
  take();
  if (name == "true" || name == "True") return make(line, Constant{Value(true)}, {});
  if (name == "false" || name == "False") return make(line, Constant{Value(false)}, {});
  if (name == "none" || name == "None") return make(line, Constant{Value()}, {});
  for (Macro* macro : open_macros_) {
    macro->uses_caller |= name == "caller";
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
  }
  return make(line, Name{name}, {});
}

ExpressionRef ExpressionParser::parse_number() {
  int line = current().line;
  Token token = take();
  const char* end = token.text.data() + token.text.size();
  if (token.kind == TokenKind::kFloat) {
    double real = 0;
    std::from_chars(token.text.data(), end, real);
    return make(line, Constant{Value(real)}, {});
  }
  int64_t whole = 0;
  if (std::from_chars(token.text.data(), end, whole).ec != std::errc()) {
    fail(fmt::format("the number {} does not fit 64 bits", token.text));
  }
  return make(line, Constant{Value(whole)}, {});
}

ExpressionRef ExpressionParser::parse_parentheses() {
  int line = current().line;
  expect_operator("(");
  if (skip_operator(")")) return make(line, SequenceLiteral{SequenceKind::kTuple, {}}, {});
  ExpressionRef inner = parse_tuple();
  expect_operator(")");
  return inner;
}

ExpressionRef ExpressionParser::parse_list() {
  int line = current().line;
  expect_operator("[");
  SequenceLiteral list{SequenceKind::kList, {}};
  const Expression* deepest = nullptr;
  while (!current().is_operator("]")) {
    list.items.push_back(parse_expression());
    if (deepest == nullptr || list.items.back()->depth > deepest->depth)
      deepest = list.items.back().get();
    if (!skip_operator(",")) break;
  }
  expect_operator("]");
  return make(line, std::move(list), {deepest});
}

ExpressionRef ExpressionParser::parse_dict() {
  int line = current().line;
  expect_operator("{");
  DictLiteral dict;
  const Expression* deepest = nullptr;
  while (!current().is_operator("}")) {
    ExpressionRef key = parse_expression();
    expect_operator(":");
    ExpressionRef value = parse_expression();
    for (const Expression* part : {key.get(), value.get()}) {
      if (deepest == nullptr || part->depth > deepest->depth) deepest = part;
    }
    dict.entries.emplace_back(std::move(key), std::move(value));
    if (!skip_operator(",")) break;
  }
  expect_operator("}");
  return make(line, std::move(dict), {deepest});
}

ExpressionRef ExpressionParser::parse_postfix(ExpressionRef expression) {
  while (true) {
    if (current().is_operator(".")) {
      expression = parse_attribute(std::move(expression));
    } else if (current().is_operator("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (current().is_operator("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionRef ExpressionParser::parse_filters_and_tests(ExpressionRef expression) {
  while (true) {
    if (skip_operator("|")) {
      expression = parse_filter(std::move(expression));
    } else if (skip_name("is")) {
      expression = parse_test(std::move(expression));
    } else if (current().is_operator("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionRef ExpressionParser::parse_filter(ExpressionRef input) {
  int line = current().line;
  Filter filter{std::move(input), expect_name(), {}};
  if (current().is_operator("(")) filter.arguments = parse_call_arguments();
  auto children = {filter.input.get()};
  return make(line, std::move(filter), children);
}

ExpressionRef ExpressionParser::parse_filters(ExpressionRef input) {
  ExpressionRef expression = parse_filter(std::move(input));
  while (skip_operator("|")) expression = parse_filter(std::move(expression));
  return expression;
}

ExpressionRef ExpressionParser::parse_test(ExpressionRef input) {
  int line = current().line;
  bool negated = skip_name("not");
  Test test{std::move(input), expect_name(), {}};
  const Token& next = current();
  bool starts_operand = next.is(TokenKind::kString) || next.is(TokenKind::kInteger) ||
                        next.is(TokenKind::kFloat) || next.is_operator("[") ||
                        next.is_operator("{") ||
                        (next.is(TokenKind::kName) && !next.is_name("else") &&
                         !next.is_name("or") && !next.is_name("and"));
  if (next.is_operator("(")) {
    test.arguments = parse_call_arguments();
  } else if (starts_operand) {
    if (next.is_name("is")) fail("tests cannot be chained with 'is'");
    test.arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  auto children = {test.input.get()};
  ExpressionRef expression = make(line, std::move(test), children);
  if (!negated) return expression;
  auto operand = {expression.get()};
  return make(line, Unary{UnaryOperator::kNot, std::move(expression)}, operand);
}

ExpressionRef ExpressionParser::parse_attribute(ExpressionRef object) {
  int line = current().line;
  expect_operator(".");
  auto children = {object.get()};
  if (current().is(TokenKind::kInteger)) {
    ExpressionRef key = parse_number();
    return make(line, Subscript{std::move(object), std::move(key)}, children);
  }
  return make(line, Attribute{std::move(object), expect_name()}, children);
}

ExpressionRef ExpressionParser::parse_subscript(ExpressionRef object) {
  int line = current().line;
  expect_operator("[");
  ExpressionRef parts[3];
  size_t colons = 0;
  while (!current().is_operator("]")) {
    if (skip_operator(":")) {
      if (++colons > 2) fail("a slice has at most three parts");
    } else if (parts[colons] != nullptr) {
      fail_unexpected("']'");
    } else {
      parts[colons] = parse_expression();
    }
  }
  expect_operator("]");
  auto children = {static_cast<const Expression*>(object.get()), parts[0].get(), parts[1].get(),
                   parts[2].get()};
  if (colons > 0) {
    return make(
        line,
        Slice{std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])},
        children);
  }
  if (parts[0] == nullptr) fail_unexpected("an index");
  return make(line, Subscript{std::move(object), std::move(parts[0])}, children);
}

ExpressionRef ExpressionParser::parse_call(ExpressionRef callee) {
  int line = current().line;
  auto children = {callee.get()};
  CallArguments arguments = parse_call_arguments();
  return make(line, Call{std::move(callee), std::move(arguments)}, children);
}

CallArguments ExpressionParser::parse_call_arguments() {
  expect_operator("(");
  CallArguments arguments;
  while (!current().is_operator(")")) {
    parse_one_argument(arguments);
    if (!skip_operator(",")) break;
  }
  expect_operator(")");
  return arguments;
}

void ExpressionParser::parse_one_argument(CallArguments& arguments) {
  if (skip_operator("*")) {
    if (arguments.spread_positional) fail("only one * argument is allowed");
    arguments.spread_positional = parse_expression();
  } else if (skip_operator("**")) {
    if (arguments.spread_named) fail("only one ** argument is allowed");
    arguments.spread_named = parse_expression();
  } else if (current().is(TokenKind::kName) && following().is_operator("=")) {
    std::string name = take().text;
    take();
    arguments.named.emplace_back(std::move(name), parse_expression());
  } else {
    if (!arguments.named.empty()) fail("a positional argument follows a named one");
    arguments.positional.push_back(parse_expression());
  }
}

}  // namespace droidspeak::jinja
