#pragma once

#include <cstdint>

#include "tensor/buffer.h"
#include "tensor/device.h"

namespace segue {

/// Makes `device` the one that CUDA calls of this thread mean when they do not say; nothing for the
/// CPU. A thread that takes pinned memory or waits for a GPU without it opens a context, some
/// hundred MiB, on GPU 0, whichever GPU its rank has.
void use_device(Device device);

/// Bytes of the device's memory that are taken, by this process and by others; 0 for the CPU.
int64_t device_bytes_in_use(Device device);

/// Memory for something that can also be done without: nothing where too little would be left.
Buffer spare_buffer(Device device, int64_t bytes, Purpose purpose);

/// Bytes on GPUs that live buffers of this process hold for one purpose.
int64_t device_bytes_held(Purpose purpose);

}  // namespace segue
