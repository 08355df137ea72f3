#pragma once

#include <vector>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

/// Sees every operator that a thread calls, before autograd and autocast do. LibTorch's modules have no
/// hooks in C++, and what a module computes cannot be changed from outside but so.
namespace hasten::device {

class OperatorHook {
 public:
  virtual ~OperatorHook() = default;
  /// An operator is called with the arguments on the stack. True: they were replaced by its results.
  /// Arguments may be changed either way. Operators that it calls itself are not shown to it.
  virtual bool call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) = 0;
};

/// While it lives, this thread's operators are shown to the hook, and to those of the scopes around it while
/// no inner hook took the call. A null hook changes nothing.
class OperatorHookScope {
 public:
  explicit OperatorHookScope(OperatorHook* hook);
  ~OperatorHookScope();
  OperatorHookScope(const OperatorHookScope&) = delete;
  OperatorHookScope& operator=(const OperatorHookScope&) = delete;

 private:
  OperatorHook* hook_;
  bool was_included_ = false;
};

/// Calls the operator with autocast switched off and unseen by hooks.
void call_without_autocast(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

}  // namespace hasten::device
