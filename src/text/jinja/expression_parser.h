// Tokens to expressions, with Jinja's precedence. Statements are read by the parser built on this.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace droidspeak::jinja {

enum class Conditionals { kAllowed, kStopBefore };

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& current() const { return tokens_[position_]; }

  const Token& following() const;
  Token take();
  bool skip_operator(std::string_view name);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view name);
  std::string expect_name();
  void expect_name(std::string_view name);
  void expect(TokenKind kind, std::string_view description);
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_unexpected(std::string_view wanted) const;

  // `a` or `a, b`: a comma makes a tuple.
  ExpressionRef parse_tuple(Conditionals conditionals = Conditionals::kAllowed);
  ExpressionRef parse_expression();
  CallArguments parse_call_arguments();
  // name(arguments) after the bar; `input` is what is filtered.
  ExpressionRef parse_filter(ExpressionRef input);
  ExpressionRef parse_filters(ExpressionRef input);  // one and any that follow after bars

  template <class Node>
  ExpressionRef make(int line, Node node, std::initializer_list<const Expression*> children);
  static int depth_of_arguments(const CallArguments& arguments);
  static int depth_of_all(const std::vector<ExpressionRef>& expressions);

  // Refuses sources that nest too deep for a recursive parser.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);

    ~Nesting() { --parser_.nesting_; }

    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  std::vector<Macro*> open_macros_;  // innermost last; told which special names they use

 private:
  ExpressionRef parse_or();
  ExpressionRef parse_and();
  ExpressionRef parse_not();
  ExpressionRef parse_comparison();
  ExpressionRef parse_sum();
  ExpressionRef parse_concatenation();
  ExpressionRef parse_product();
  ExpressionRef parse_power();
  enum class Filters { kAllowed, kStopBefore };
  ExpressionRef parse_unary(Filters filters);
  ExpressionRef parse_primary();
  ExpressionRef parse_name();
  ExpressionRef parse_number();
  ExpressionRef parse_list();
  ExpressionRef parse_dict();
  ExpressionRef parse_parentheses();
  ExpressionRef parse_postfix(ExpressionRef expression);
  ExpressionRef parse_filters_and_tests(ExpressionRef expression);
  ExpressionRef parse_test(ExpressionRef input);
  ExpressionRef parse_attribute(ExpressionRef object);
  ExpressionRef parse_subscript(ExpressionRef object);
  ExpressionRef parse_call(ExpressionRef callee);
  void parse_one_argument(CallArguments& arguments);
  std::optional<ComparisonOperator> take_comparison();
  bool ends_tuple() const;

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace droidspeak::jinja
