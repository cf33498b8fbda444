#pragma once

#include <cstdint>
#include <string>

#include "base/stage.h"

namespace segue {

/// Records what the GPUs of this process do (kernels, copies, fills) and the calls that queued it,
/// by CUPTI, which is loaded on the first call. There is one recorder in a process, as there is one
/// of stages. Returns why it cannot be; empty: it records.
std::string start_gpu_recording();
/// Forgets what has been recorded so far; nothing where nothing is recorded.
void drop_gpu_recording();
/// Ends it. What GPUs did since `recording` began is added to it, in its time; the caller has
/// waited for them. Returns what is not in it, and why; empty: nothing is missing.
std::string stop_gpu_recording(base::StageRecording& recording);

namespace detail {
/// A kernel's name as one reads it: no return type, no namespaces, no parameters, and template
/// arguments only while they are short.
std::string kernel_name(const std::string& mangled);
}  // namespace detail

}  // namespace segue
