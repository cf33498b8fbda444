#include "tensor/launches.h"

namespace segue {

namespace {
thread_local int64_t t_launches = 0;
}  // namespace

int64_t launches() { return t_launches; }
void count_launches(int64_t kernels) { t_launches += kernels; }

}  // namespace segue
