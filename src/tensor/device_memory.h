#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace segue {

/// Bytes of the device's memory that are taken, by this process and by others; 0 for the CPU.
int64_t device_bytes_in_use(Device device);

}  // namespace segue
