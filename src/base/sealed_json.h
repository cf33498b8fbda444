#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/checked_json.h"
#include "base/file_io.h"

namespace segue::base {

// Manifests: JSON objects that end in a checksum of every byte before it.

/// Sixteen digits.
std::string hex64(uint64_t value);
/// Error(kCorrupt), as checked_json.h has it, when `text` is no such number.
uint64_t from_hex64(const std::string& text);

/// The object with its checksum as the last member.
std::string seal_json(const CheckedJson& object);
/// The checksum that a sealed text ends in.
uint64_t seal_of(const std::string& sealed);
/// `use` gets the object of a text that is as it was sealed, by whomever. Error(kCorrupt) with
/// `path`, also for that of `use`.
void unseal_json(const std::string& text, const std::string& path,
                 const std::function<void(const CheckedJson&)>& use);

/// The member `files` of a manifest: name, size and checksum of each, no name twice.
CheckedJson to_json(std::span<const FileRecord> files);
std::vector<FileRecord> files_from_json(const CheckedJson& manifest);

}  // namespace segue::base
