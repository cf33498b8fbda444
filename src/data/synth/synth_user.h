#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/synth/synth_catalogue.h"

namespace segue::data {

/// What one user of a synthetic log is like, and what follows from it. docs/synth.md has the
/// formulas.
class SynthUser {
 public:
  /// `number` counts users; `id` is the id in the log.
  SynthUser(const SynthCatalogue& catalogue, const SynthConfig& config, int64_t number, int64_t id);

  void generate(UserLog& log);

 private:
  struct Favourite {
    int64_t artist = 0;
    double affinity = 0;
  };
  /// What is about to be played, and why.
  struct Choice {
    int64_t artist = 0;
    SynthCatalogue::Item item;
    double affinity = 0;
    bool organic = false;
  };
  /// A finished or skipped play that fatigue and repeats look back at.
  struct Play {
    int64_t slot = -1;
    int64_t artist = 0;
    double affinity = 0;
    bool finished = false;
  };
  struct Session {
    int64_t listens = 0;
    double mood = 0;
  };
  static constexpr int64_t kMemory = 32;  // plays that count as recent

  void draw_profile();
  void draw_favourites();
  double affinity(int64_t artist) const;
  double intensity(double time) const;  // relative, 0 to 1: when sessions begin
  /// Start of the first session after `free_from`; end_ if there is none.
  int64_t next_session(int64_t free_from, int64_t session) const;
  Session open_session(int64_t number) const;

  Choice choose(int64_t time, int64_t position) const;
  double probability(const Choice& choice, const Session& session, int64_t time) const;
  /// Appends the listen; returns how long it kept the user.
  int64_t listen(const Choice& choice, double probability, int64_t time);
  void react(const Choice& choice, bool finished, double will, int64_t time);
  void add(SynthKind kind, bool organic, int64_t slot, int64_t time);
  /// The first user listens at the last tick, so that the time span of a log follows from its
  /// config.
  bool closes_log() const { return number_ == 0; }

  uint64_t element() const;  // of the listen that is being made

  const SynthCatalogue& catalogue_;
  const SynthConfig& config_;
  int64_t number_, id_;
  uint64_t key_ = 0;

  // profile
  int64_t begin_ = 0, end_ = 0;  // time the user is there
  double candidate_gap_ = 0;     // mean seconds between candidates for a session's start
  double peak_hour_[2] = {}, peak_share_ = 0;
  double offset_ = 0, repeat_share_ = 0, favourite_share_ = 0;
  std::array<double, SynthCatalogue::kGenres> genre_taste_{};
  std::vector<Favourite> favourites_;

  // what has happened so far
  UserLog* log_ = nullptr;
  int64_t listens_ = 0;
  std::array<Play, kMemory> recent_{};
  std::vector<int64_t> liked_, disliked_;  // slots
};

}  // namespace segue::data
