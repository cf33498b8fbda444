#pragma once

#include <string>

namespace segue::comm {

/// What ranks that meet over TCP share, as the environment gives it (see Launch): `text`, or what
/// is in the file at `path`, which belongs to this user and which nobody else may read. Empty when
/// neither is given. Error(kConfig) for both, or one that is too short; Error(kIo) for such a file.
std::string given_secret(const std::string& text, const std::string& path);

enum class Readers { kOwner, kAny };
/// The text of a small file; kOwner: that belongs to this user, and that nobody else can read or
/// write. Empty, with the reason in `trouble`, when it is not there or not so.
std::string read_small(const std::string& path, Readers readers, std::string& trouble);
/// Replaces `path` by a file of the owner's alone. Error(kIo).
void write_private(const std::string& path, const std::string& text);

/// What to do about a missing secret, for messages.
extern const char* const kMakeSecret;

}  // namespace segue::comm
