#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "data/log/event.h"

namespace segue::data {

/// How large a synthetic log is. The process behind it is fixed and described in docs/synth.md.
struct SynthConfig {
  int64_t users = 2000;
  int64_t items = 20000;
  int64_t days = 60;
  int64_t events_per_user = 500;  // mean; users differ as they do in real logs
  uint64_t seed = 1;

  void validate() const;  // Error(kInvalidArgument)
  /// No event is at or after this. The last one is exactly one tick before it.
  int64_t end_time() const { return days * kDaySeconds; }

  static constexpr int64_t kDaySeconds = 86400;
  static constexpr int64_t kTick = 5;  // every timestamp is a multiple
};

/// The numbers of the event kinds, as in the public log.
enum SynthKind : uint8_t { kListen = 0, kLike = 1, kDislike = 2, kUnlike = 3, kUndislike = 4 };

/// Everything one user did, in store order.
struct UserLog {
  std::vector<Event> events;
  /// Per event: the probability, given everything before it, that a listen becomes a listen_plus;
  /// NaN for other kinds. No predictor can have a larger expected AUC than this one.
  std::vector<float> listen_probability;

  void clear() {
    events.clear();
    listen_probability.clear();
  }
};

/// Rows of a file that maps items to an attribute. An item may have several; the last one counts.
struct AttributeRows {
  std::vector<int64_t> items, values;
};

class SynthCatalogue;

/// A music-streaming log made up from nothing: users with lasting tastes, sessions, habits, repeats
/// and a growing catalogue. A pure function of the config: any user can be asked for at any time,
/// on any thread. Memory grows with the number of artists alone (about items / 21, 12 bytes each).
class SynthLog {
 public:
  explicit SynthLog(const SynthConfig& config);
  ~SynthLog();

  const SynthConfig& config() const { return config_; }
  /// Id of the user with this number; rising. One id in seventeen belongs to nobody.
  int64_t user_id(int64_t user) const;
  /// Replaces `log` by the events of user number `user`.
  void generate(int64_t user, UserLog& log) const;

  /// All users in order, a block at a time, each block generated in parallel.
  /// `sink(first_user, logs)` runs on the calling thread.
  template <class Sink>
  void for_each_block(Sink sink) const {
    std::vector<UserLog> logs;
    for (int64_t first = 0; first < config_.users; first += block_users()) {
      generate_block(first, logs);
      sink(first, std::span<const UserLog>(logs));
    }
  }

  AttributeRows artist_rows() const;
  AttributeRows album_rows() const;

 private:
  int64_t block_users() const;
  void generate_block(int64_t first, std::vector<UserLog>& logs) const;

  SynthConfig config_;
  std::unique_ptr<SynthCatalogue> catalogue_;
};

}  // namespace segue::data
