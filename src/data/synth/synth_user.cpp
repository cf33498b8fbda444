#include "data/synth/synth_user.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/rng.h"
#include "data/synth/synth_draw.h"

namespace segue::data {
namespace {

// Activity
constexpr double kMeanActivity = 1.6;       // mean of exp(bell), cut at the next line
constexpr double kLargestActivity = 6;      // times the mean
constexpr double kMeanSessionListens = 10;  // geometric
constexpr double kEventsPerListen = 1.03;   // reactions included
constexpr double kMeanListenSeconds = 145;  // with the pause after it
constexpr double kLargestOccupancy = 0.5;   // share of the time that sessions may fill
constexpr double kBusyHours = 1.5;          // a session takes time when others would begin, too
constexpr int64_t kSessionGap = 1800;       // a longer break starts a new session
constexpr double kPeakSharpness = 4;        // of the hours of the day
constexpr double kBaseIntensity = 0.06;     // at any hour
constexpr double kMeanPeak = 0.207;         // exp(4 (cos x - 1)) averaged over the circle

// What is played
constexpr double kSameArtist = 0.25;     // goes on with the artist of the last play
constexpr int64_t kMostFavourites = 24;  // artists
constexpr double kFavouriteShift = 3;    // flattens their Zipf law
constexpr uint32_t kFavouriteAttempts = 8;
constexpr double kGenreShare = 0.7;  // of an affinity, the rest is the user's own
const double kPersonalShare = std::sqrt(1 - kGenreShare * kGenreShare);
// Share of listens that the user started, the others were recommended.
constexpr double kOrganicRepeat = 0.9, kOrganicSameArtist = 0.7, kOrganicFavourite = 0.6,
                 kOrganicDiscovery = 0.2;

// Logit of listen_plus
constexpr double kBias = 0.3;
constexpr double kAffinityWeight = 1.5;
constexpr double kQualityWeight = 0.35;
constexpr double kUserWeight = 0.3;
constexpr double kMoodWeight = 0.7;
constexpr double kFatigueWeight = 0.7;
constexpr double kMostFatigue = 4;
constexpr double kHourWeight = 0.25;
constexpr double kOrganicWeight = 0.2;

// Reactions and what follows
constexpr double kReactionSlope = 1.5;
constexpr double kLikeShare = 0.053, kDislikeShare = 0.042;
constexpr double kUnlikeShare = 0.0016, kUndislikeShare = 0.0006;

constexpr double kMeanPause = 8, kLongestPause = 120;  // seconds

constexpr double kHour = 3600;

double hour_angle(double time, double hour) {
  return 2 * std::numbers::pi * (time / kHour - hour) / 24;
}

int64_t round_up_to_tick(double seconds) {
  return static_cast<int64_t>(std::ceil(seconds / SynthConfig::kTick)) * SynthConfig::kTick;
}

/// Per cent of the track. Most finished tracks are played to the end, a few again from the start;
/// skips come early.
int64_t played_ratio(bool finished, double uniform) {
  constexpr double kWhole = 0.72, kRestarted = 0.03;
  if (!finished) return static_cast<int64_t>(50 * uniform * uniform);
  if (uniform < kWhole) return 100;
  const double rest = (uniform - kWhole) / (1 - kWhole);
  const double restarted = kRestarted / (1 - kWhole);
  if (rest < restarted) return 101 + static_cast<int64_t>(50 * rest / restarted);
  return 50 + static_cast<int64_t>(50 * (rest - restarted) / (1 - restarted));
}

}  // namespace

SynthUser::SynthUser(const SynthCatalogue& catalogue, const SynthConfig& config, int64_t number,
                     int64_t id)
    : catalogue_(catalogue),
      config_(config),
      number_(number),
      id_(id),
      key_(base::splitmix64(config.seed)) {
  draw_profile();
  draw_favourites();
}

void SynthUser::draw_profile() {
  const auto d = [this](uint32_t number) {
    return draw(kUserDraw, key_, static_cast<uint64_t>(number_), number);
  };
  const auto all = static_cast<double>(config_.end_time());
  // Most are there from the beginning; the others come during the first 70 % of the log.
  const Draw presence = d(0);
  const double joined = presence.uniform_a() < 0.8 ? 0 : presence.uniform_b() * 0.7 * all;
  begin_ = round_up_to_tick(joined);
  // Whoever closes the log is away before, so that this is a session of its own.
  end_ = config_.end_time() - (closes_log() ? SynthConfig::kTick + kSessionGap : 0);

  const double activity = std::min(std::exp(bell(d(1).a)) / kMeanActivity, kLargestActivity);
  const double session_seconds = kSessionGap + kMeanSessionListens * kMeanListenSeconds;
  const double present = static_cast<double>(end_ - begin_);
  const double sessions = std::min(activity * static_cast<double>(config_.events_per_user) /
                                       (kMeanSessionListens * kEventsPerListen),
                                   kLargestOccupancy * present / session_seconds);
  const double mean_intensity = kBaseIntensity + (1 - kBaseIntensity) * kMeanPeak;
  candidate_gap_ = (present / sessions - kBusyHours * session_seconds) * mean_intensity;

  const Draw hours = d(2), habits = d(3);
  peak_hour_[0] = 7 + 5 * hours.uniform_a();
  peak_hour_[1] = 16 + 7 * hours.uniform_b();
  peak_share_ = 0.2 + 0.6 * habits.uniform_a();
  repeat_share_ = 0.1 + 0.2 * habits.uniform_b();
  const Draw more = d(4);
  favourite_share_ = 0.6 + 0.3 * more.uniform_a();
  offset_ = bell(more.b);
  for (uint32_t g = 0; g < SynthCatalogue::kGenres; g += 2) {
    const Draw taste = d(8 + g);
    genre_taste_[g] = bell(taste.a);
    genre_taste_[g + 1] = bell(taste.b);
  }
}

double SynthUser::affinity(int64_t artist) const {
  const double personal = bell(draw(kTasteDraw, key_, pair_element(number_, artist), 0).a);
  return kGenreShare * genre_taste_[catalogue_.genre(artist)] + kPersonalShare * personal;
}

void SynthUser::draw_favourites() {
  const int64_t wanted = std::min(kMostFavourites, catalogue_.num_artists());
  for (int64_t i = 0; i < wanted; ++i) {
    Favourite best;
    for (uint32_t attempt = 0; attempt < kFavouriteAttempts; ++attempt) {
      const Draw d = draw(kFavouriteDraw, key_, pair_element(number_, i), attempt);
      best.artist = catalogue_.popular_artist(d.uniform_a());
      best.affinity = affinity(best.artist);
      if (d.uniform_b() < sigmoid(2 * best.affinity)) break;
    }
    favourites_.push_back(best);
  }
}

double SynthUser::intensity(double time) const {
  const auto peak = [&](int i) {
    return std::exp(kPeakSharpness * (std::cos(hour_angle(time, peak_hour_[i])) - 1));
  };
  return kBaseIntensity +
         (1 - kBaseIntensity) * (peak_share_ * peak(0) + (1 - peak_share_) * peak(1));
}

int64_t SynthUser::next_session(int64_t free_from, int64_t session) const {
  auto time = static_cast<double>(free_from);
  for (uint32_t attempt = 1; time < static_cast<double>(end_); ++attempt) {
    const Draw d = draw(kSessionDraw, key_, pair_element(number_, session), attempt);
    time += candidate_gap_ * exponential(d.uniform_a());
    if (d.uniform_b() < intensity(time)) break;
  }
  return time < static_cast<double>(end_) ? round_up_to_tick(time) : end_;
}

SynthUser::Session SynthUser::open_session(int64_t number) const {
  const uint64_t e = pair_element(number_, number);
  const double stop = std::log1p(-1 / kMeanSessionListens);
  const Draw d = draw(kSessionDraw, key_, e, 0);
  return {1 + static_cast<int64_t>(std::log(d.uniform_a()) / stop), bell(d.b)};
}

uint64_t SynthUser::element() const { return pair_element(number_, listens_); }

SynthUser::Choice SynthUser::choose(int64_t time, int64_t position) const {
  const Draw way = draw(kListenDraw, key_, element(), 0);
  const Draw what = draw(kListenDraw, key_, element(), 1);
  const double organic = way.uniform_b();

  if (way.uniform_a() < repeat_share_) {
    const Play& again = recent_[scale_to(what.b, kMemory)];
    if (again.finished) {
      return {again.artist, catalogue_.item(again.slot), again.affinity, organic < kOrganicRepeat};
    }
  }
  Choice c;
  const double source = what.uniform_a();
  if (position > 0 && source < kSameArtist) {
    const Play& last = recent_[(listens_ - 1) % kMemory];
    c = {last.artist, {}, last.affinity, organic < kOrganicSameArtist};
  } else if (source < kSameArtist + (1 - kSameArtist) * favourite_share_) {
    const auto count = static_cast<int64_t>(favourites_.size());
    const Favourite& f = favourites_[zipf_rank(what.uniform_b(), count, kFavouriteShift)];
    c = {f.artist, {}, f.affinity, organic < kOrganicFavourite};
  } else {
    const int64_t artist = catalogue_.popular_artist(what.uniform_b());
    c = {artist, {}, affinity(artist), organic < kOrganicDiscovery};
  }
  c.item = catalogue_.item(catalogue_.draw_slot(c.artist, time, element()));
  return c;
}

double SynthUser::probability(const Choice& c, const Session& session, int64_t time) const {
  const auto repeats = std::count_if(recent_.begin(), recent_.end(),
                                     [&](const Play& p) { return p.slot == c.item.slot; });
  const double fatigue = std::min(static_cast<double>(repeats), kMostFatigue);
  const double main_hour = peak_hour_[peak_share_ > 0.5 ? 0 : 1];
  return sigmoid(kBias + kAffinityWeight * c.affinity + kQualityWeight * c.item.quality +
                 kUserWeight * offset_ + kMoodWeight * session.mood - kFatigueWeight * fatigue +
                 kHourWeight * std::cos(hour_angle(static_cast<double>(time), main_hour)) +
                 (c.organic ? kOrganicWeight : -kOrganicWeight));
}

void SynthUser::add(SynthKind kind, bool organic, int64_t slot, int64_t time) {
  Event e;
  e.user = id_;
  e.time = time;
  e.item = catalogue_.item_id(slot);
  e.kind = kind;
  e.organic = organic ? 1 : 0;
  log_->events.push_back(e);
  log_->listen_probability.push_back(std::numeric_limits<float>::quiet_NaN());
}

int64_t SynthUser::listen(const Choice& choice, double p, int64_t time) {
  const Draw d = draw(kListenDraw, key_, element(), 2);
  const Draw after = draw(kListenDraw, key_, element(), 3);
  const bool finished = d.uniform_a() < p;
  const int64_t ratio = played_ratio(finished, d.uniform_b());
  add(kListen, choice.organic, choice.item.slot, time);
  log_->events.back().value = static_cast<float>(ratio);
  log_->events.back().length = choice.item.length;
  log_->listen_probability.back() = static_cast<float>(p);
  react(choice, finished, after.uniform_a(), time);

  recent_[listens_ % kMemory] = {choice.item.slot, choice.artist, choice.affinity, finished};
  ++listens_;
  const double played = static_cast<double>(choice.item.length * ratio) / 100;
  const double pause = std::min(kMeanPause * exponential(after.uniform_b()), kLongestPause);
  return std::max(round_up_to_tick(played + pause), 2 * SynthConfig::kTick);
}

/// `will` is uniform: small for likes and dislikes, near 1 for taking one back.
void SynthUser::react(const Choice& choice, bool finished, double will, int64_t time) {
  const double taste = kReactionSlope * choice.affinity;
  const bool like = finished && will < kLikeShare * sigmoid(taste);
  const bool dislike = !finished && will < kDislikeShare * sigmoid(-taste);
  const bool unlike = will > 1 - kUnlikeShare && !liked_.empty();
  const bool undislike =
      will < 1 - kUnlikeShare && will > 1 - kUnlikeShare - kUndislikeShare && !disliked_.empty();
  if (!like && !dislike && !unlike && !undislike) return;

  const Draw d = draw(kListenDraw, key_, element(), 4);
  const int64_t at = time + (d.uniform_b() < 0.5 ? 0 : SynthConfig::kTick);
  if (at >= end_) return;
  std::vector<int64_t>& marked = like || unlike ? liked_ : disliked_;
  std::vector<int64_t>& opposite = like || unlike ? disliked_ : liked_;
  if (like || dislike) {
    const int64_t slot = choice.item.slot;
    if (std::find(marked.begin(), marked.end(), slot) != marked.end()) return;
    std::erase(opposite, slot);
    marked.push_back(slot);
    add(like ? kLike : kDislike, choice.organic, slot, at);
  } else {
    const auto taken_back = marked.begin() + static_cast<int64_t>(scale_to(d.a, marked.size()));
    add(unlike ? kUnlike : kUndislike, true, *taken_back, at);
    marked.erase(taken_back);
  }
}

void SynthUser::generate(UserLog& log) {
  log.clear();
  log_ = &log;
  int64_t session = 0;
  for (int64_t free_from = begin_;; ++session) {
    int64_t time = next_session(free_from, session);
    const Session now = open_session(session);
    for (int64_t i = 0; i < now.listens && time < end_; ++i) {
      const Choice choice = choose(time, i);
      time += listen(choice, probability(choice, now, time), time);
    }
    if (time >= end_) break;
    free_from = log.events.back().time + kSessionGap + 1;
  }
  if (closes_log()) {
    const int64_t time = config_.end_time() - SynthConfig::kTick;
    const Choice choice = choose(time, 0);
    listen(choice, probability(choice, open_session(session + 1), time), time);
  }
}

}  // namespace segue::data
