#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <hasten/device/operator_hook.h>

namespace hasten::device {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// A key that comes before autograd and autocast, and that LibTorch leaves to libraries outside of it.
constexpr DispatchKey kKey = DispatchKey::DeferredInit;

thread_local std::vector<OperatorHook*> hooks;

void show(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
    for (std::size_t i = hooks.size(); i > 0; --i)
      if (hooks[i - 1]->call(op, *stack)) return;
  }
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kKey), stack);
}

/// Registered when the first hook is used, so that a program without hooks keeps its dispatcher as it was.
void register_once() {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&show>());
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace

OperatorHookScope::OperatorHookScope(OperatorHook* hook) : hook_(hook) {
  if (hook_ == nullptr) return;
  register_once();
  hooks.push_back(hook_);
  was_included_ = c10::impl::tls_is_dispatch_key_included(kKey);
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

OperatorHookScope::~OperatorHookScope() {
  if (hook_ == nullptr) return;
  c10::impl::tls_set_dispatch_key_included(kKey, was_included_);
  hooks.pop_back();
}

void call_without_autocast(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::autocast_dispatch_keyset | DispatchKeySet(kKey));
  op.callBoxed(stack);
}

}  // namespace hasten::device
