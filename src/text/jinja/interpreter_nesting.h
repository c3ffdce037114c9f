// Bounds the recursion of the interpreter, so that no template overflows the stack.
#pragma once

#include "text/jinja/interpreter.h"

namespace droidspeak::jinja {

class Interpreter::Nesting {
 public:
  explicit Nesting(Interpreter& interpreter) : depth_(interpreter.depth_) {
    constexpr int kMaxDepth = 600;
    if (depth_ >= kMaxDepth) throw TemplateError("macros or expressions nest too deep");
    ++depth_;
  }

  ~Nesting() { --depth_; }

  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

// Variables set while it lives vanish with it.
class Interpreter::InnerScope {
 public:
  InnerScope(Interpreter& interpreter, std::shared_ptr<Scope> parent)
      : interpreter_(interpreter), outer_(interpreter.scope_) {
    interpreter.scope_ = std::make_shared<Scope>();
    interpreter.scope_->parent = std::move(parent);
  }

  explicit InnerScope(Interpreter& interpreter) : InnerScope(interpreter, interpreter.scope_) {}

  ~InnerScope() { interpreter_.scope_ = std::move(outer_); }

  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace droidspeak::jinja
