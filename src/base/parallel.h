#pragma once

#include <cstdint>
#include <type_traits>

namespace segue::base {

/// Number of threads that parallel_for may use. Results never depend on it.
int num_threads();
/// 0: OMP_NUM_THREADS if that is set, else all cores that this process may use.
void set_num_threads(int threads);

/// A reference to a callable, valid for the duration of one call: no allocation, no template bloat.
class RangeFunction {
 public:
  // Implicit: a lambda is passed where a range function is wanted.
  template <class F,
            class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<F>, RangeFunction>>>
  RangeFunction(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int64_t begin, int64_t end) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end);
        }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t);
};

/// Calls body(begin, end) for consecutive chunks of [0, n) of size `grain` (the last may be
/// shorter). The cut depends on n and grain alone, never on the number of threads, so a body that
/// keeps one partial result per chunk (chunk index = begin / grain) gives the same bits on any
/// machine load. An exception thrown by a body is rethrown here, the one of the lowest chunk if
/// several throw. Nested calls run their chunks in order on the calling thread, unless the outer
/// one has a single chunk: that is a plain call.
void parallel_for(int64_t n, int64_t grain, RangeFunction body);

/// Number of chunks parallel_for makes.
inline int64_t num_chunks(int64_t n, int64_t grain) { return n / grain + (n % grain != 0); }

/// True while the calling thread runs one of several chunks of parallel_for.
bool in_parallel();

}  // namespace segue::base
