#pragma once

// What event files are made of, for their writer and their reader: TFRecord frames around messages
// in protobuf's wire format.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace segue::report::detail {

inline constexpr std::string_view kEventFilePrefix = "events.out.tfevents.";

uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc(std::string_view bytes);

// A field is (number << 3 | wire type) and then its value.
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Field numbers of tensorflow.Event, Summary, Summary.Value and SessionLog.
inline constexpr uint64_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3,
                          kEventSummary = 5, kEventSessionLog = 7, kSummaryValue = 1, kValueTag = 1,
                          kValueSimple = 2, kSessionStatus = 1;
inline constexpr int64_t kSessionStart = 1;

/// Names of the event files of a folder, in the order in which TensorBoard reads them.
std::vector<std::string> event_files(const std::string& folder);

}  // namespace segue::report::detail
