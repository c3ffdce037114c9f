#include "text/jinja/parser.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/expression_parser.h"

namespace droidspeak::jinja {

namespace {

using Names = std::initializer_list<std::string_view>;

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block parse() {
    Block block = parse_block({});
    if (!current().is(TokenKind::kEnd)) fail_unexpected("the end of the template");
    return block;
  }

 private:
  // Reads up to a block tag named in `ends` and stops at that name, its `{%` taken.
  Block parse_block(Names ends) {
    Nesting nesting(*this);
    Block block;
    while (!current().is(TokenKind::kEnd)) {
      int line = current().line;
      Token token = take();
      if (token.is(TokenKind::kText)) {
        Text text = std::make_shared<const std::string>(std::move(token.text));
        block.push_back({line, TextOutput{Value(std::move(text))}});
      } else if (token.is(TokenKind::kOutputBegin)) {
        block.push_back({line, Output{parse_tuple()}});
        expect(TokenKind::kOutputEnd, "'}}'");
      } else {
        bool is_end = std::any_of(ends.begin(), ends.end(),
                                  [&](std::string_view end) { return current().is_name(end); });
        if (is_end) return block;
        block.push_back(parse_statement());
      }
    }
    if (ends.size() > 0) fail(fmt::format("missing {{% {} %}}", *(ends.end() - 1)));
    return block;
  }

  void end_tag() { expect(TokenKind::kBlockEnd, "'%}'"); }

  // The body of a tag up to and with `{% end %}`.
  Block parse_body(std::string_view end) {
    end_tag();
    Block body = parse_block({end});
    take();
    return body;
  }

  Statement parse_statement() {
    int line = current().line;
    std::string name = expect_name();
    Statement statement{line, Break{}};
    if (name == "for") {
      statement.node = parse_for();
    } else if (name == "if") {
      statement.node = parse_if();
    } else if (name == "set") {
      parse_set(statement);
    } else if (name == "macro") {
      statement.node = parse_macro();
    } else if (name == "call") {
      statement.node = parse_call_block();
    } else if (name == "filter") {
      statement.node = parse_filter_block();
    } else if (name == "with") {
      statement.node = parse_with();
    } else if (name == "generation") {
      statement.node = With{{}, parse_body("endgeneration")};
    } else if (name == "break" || name == "continue") {
      statement.node = parse_jump(name);
    } else {
      throw SyntaxError{line, fmt::format("unknown tag '{}'", name)};
    }
    end_tag();
    return statement;
  }

  decltype(Statement::node) parse_jump(const std::string& name) {
    if (loop_depth_ == 0) fail(fmt::format("'{}' outside of a loop", name));
    if (name == "break") return Break{};
    return Continue{};
  }

  For parse_for() {
    For loop;
    loop.target = parse_target();
    expect_name("in");
    loop.items = parse_tuple(Conditionals::kStopBefore);
    if (skip_name("if")) loop.condition = parse_expression();
    if (current().is_name("recursive")) fail("recursive loops are not supported");
    end_tag();
    ++loop_depth_;
    loop.body = parse_block({"else", "endfor"});
    --loop_depth_;
    if (skip_name("else")) {
      loop.otherwise = parse_body("endfor");
    } else {
      take();
    }
    return loop;
  }

  If parse_if() {
    If statement;
    do {
      ExpressionRef condition = parse_tuple(Conditionals::kStopBefore);
      end_tag();
      statement.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    } while (skip_name("elif"));
    if (skip_name("else")) {
      statement.otherwise = parse_body("endif");
    } else {
      take();
    }
    return statement;
  }

  void parse_set(Statement& statement) {
    Target target = parse_target();
    if (skip_operator("=")) {
      statement.node = Set{std::move(target), parse_tuple()};
      return;
    }
    if (!target.parts.empty()) fail("a block can be set to one name only");
    ExpressionRef filtered = block_text();
    if (skip_operator("|")) filtered = parse_filters(std::move(filtered));
    statement.node = SetBlock{std::move(target), std::move(filtered), parse_body("endset")};
  }

  ExpressionRef block_text() const {
    auto expression = std::make_unique<Expression>();
    expression->line = current().line;
    expression->node = Name{kBlockText};
    return expression;
  }

  MacroDefinition parse_macro() {
    MacroDefinition definition;
    definition.macro.name = expect_name();
    parse_parameters(definition.macro);
    parse_macro_body(definition.macro, "endmacro");
    return definition;
  }

  void parse_parameters(Macro& macro) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      Macro::Parameter parameter{expect_name(), nullptr};
      if (skip_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
        fail(fmt::format("parameter '{}' without a default follows one with a default",
                         parameter.name));
      }
      macro.parameters.push_back(std::move(parameter));
      if (!skip_operator(",")) break;
    }
    expect_operator(")");
  }

  // A loop around a macro is not a loop its body could leave.
  void parse_macro_body(Macro& macro, std::string_view end) {
    int outer_loops = std::exchange(loop_depth_, 0);
    open_macros_.push_back(&macro);
    macro.body = parse_body(end);
    open_macros_.pop_back();
    loop_depth_ = outer_loops;
  }

  CallBlock parse_call_block() {
    CallBlock block;
    block.caller.name = "caller";
    if (current().is_operator("(")) parse_parameters(block.caller);
    block.call = parse_expression();
    if (!std::holds_alternative<Call>(block.call->node)) fail("a call block needs a call");
    parse_macro_body(block.caller, "endcall");
    return block;
  }

  FilterBlock parse_filter_block() {
    ExpressionRef filtered = parse_filters(block_text());
    return {std::move(filtered), parse_body("endfilter")};
  }

  With parse_with() {
    With with;
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!with.variables.empty()) expect_operator(",");
      Target target = parse_target();
      expect_operator("=");
      with.variables.emplace_back(std::move(target), parse_expression());
    }
    with.body = parse_body("endwith");
    return with;
  }

  // a | a.b | a, b | (a, b), c
  Target parse_target() {
    Target tuple;
    bool has_comma = false;
    do {
      if (!current().is(TokenKind::kName) && !current().is_operator("(")) break;
      if (!tuple.parts.empty() && current().is_name("in")) break;
      tuple.parts.push_back(parse_one_target());
      has_comma |= current().is_operator(",");
    } while (skip_operator(","));
    if (tuple.parts.empty()) fail_unexpected("a name to assign to");
    if (has_comma) return tuple;
    Target single = std::move(tuple.parts.front());
    return single;
  }

  Target parse_one_target() {
    if (skip_operator("(")) {
      Nesting nesting(*this);
      Target inner = parse_target();
      expect_operator(")");
      return inner;
    }
    Target target;
    target.name = expect_name();
    if (target.name == "true" || target.name == "false" || target.name == "none" ||
        target.name == "True" || target.name == "False" || target.name == "None") {
      fail(fmt::format("cannot assign to '{}'", target.name));
    }
    if (skip_operator(".")) target.attribute = expect_name();
    return target;
  }

  int loop_depth_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
  return Parser(tokenize(source)).parse();
}

}  // namespace droidspeak::jinja
