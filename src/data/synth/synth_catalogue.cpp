#include "data/synth/synth_catalogue.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/rng.h"
#include "data/synth/synth_draw.h"

namespace segue::data {
namespace {

constexpr double kLargestArtist = 100;    // items; sizes are log-uniform, 21 on average
constexpr double kArtistShift = 10;       // flattens the head of the popularity of artists
constexpr double kTrackShift = 1;         // and of the tracks of one artist
constexpr double kReleasedBefore = 0.65;  // share of albums that were out when the log begins
constexpr double kGuestShare = 0.08;      // items with a second artist
constexpr double kCompilationShare = 0.05;
constexpr double kMeanLength = 210, kLengthSpread = 50;  // seconds of a track
constexpr uint32_t kTrackAttempts = 16;

}  // namespace

SynthCatalogue::SynthCatalogue(const SynthConfig& config)
    : config_(config), key_(base::splitmix64(config.seed)) {
  int64_t slot = 0;
  while (slot < config_.items) {
    const auto number = static_cast<uint64_t>(artists_.size());
    const Draw d = draw(kArtistDraw, key_, number, 0);
    const auto size = static_cast<int64_t>(std::pow(kLargestArtist, d.uniform_a()));
    const int64_t items = std::min(size, config_.items - slot);
    const Draw e = draw(kArtistDraw, key_, number, 1);
    artists_.push_back({static_cast<uint32_t>(slot), static_cast<uint32_t>(num_albums_),
                        static_cast<uint8_t>(items),
                        static_cast<uint8_t>(scale_to(d.b, static_cast<uint64_t>(items))),
                        static_cast<uint8_t>(scale_to(e.a, kGenres))});
    slot += items;
    num_albums_ += (items + kAlbumItems - 1) / kAlbumItems;
  }
}

int64_t SynthCatalogue::popular_artist(double uniform) const {
  return zipf_rank(uniform, num_artists(), kArtistShift);
}

bool SynthCatalogue::is_released(const Artist& artist, int64_t album_of_artist,
                                 int64_t time) const {
  if (album_of_artist == 0) return true;  // every artist always has something out
  const Draw d =
      draw(kAlbumDraw, key_, artist.first_album + static_cast<uint64_t>(album_of_artist), 0);
  if (d.uniform_a() < kReleasedBefore) return true;
  return d.uniform_b() * static_cast<double>(config_.end_time()) <= static_cast<double>(time);
}

int64_t SynthCatalogue::draw_slot(int64_t number, int64_t time, uint64_t element) const {
  const Artist& artist = artists_[number];
  for (uint32_t attempt = 0; attempt < kTrackAttempts; ++attempt) {
    const Draw d = draw(kTrackDraw, key_, element, attempt);
    const int64_t rank = zipf_rank(d.uniform_a(), artist.items, kTrackShift);
    const int64_t track = (artist.hit + rank) % artist.items;
    if (is_released(artist, track / kAlbumItems, time)) return artist.first_slot + track;
  }
  return artist.first_slot;
}

SynthCatalogue::Item SynthCatalogue::item(int64_t slot) const {
  const Draw d = draw(kItemDraw, key_, static_cast<uint64_t>(slot), 0);
  return {slot, bell(d.a), static_cast<int32_t>(kMeanLength + kLengthSpread * bell(d.b))};
}

AttributeRows SynthCatalogue::artist_rows() const {
  AttributeRows rows;
  rows.items.reserve(static_cast<size_t>(config_.items));
  rows.values.reserve(static_cast<size_t>(config_.items));
  for (int64_t a = 0; a < num_artists(); ++a) {
    for (int64_t slot = artists_[a].first_slot; slot < artists_[a].first_slot + artists_[a].items;
         ++slot) {
      const Draw d = draw(kMappingDraw, key_, static_cast<uint64_t>(slot), 0);
      if (d.uniform_a() < kGuestShare) {
        rows.items.push_back(item_id(slot));
        rows.values.push_back(artist_id(popular_artist(d.uniform_b())));
      }
      rows.items.push_back(item_id(slot));
      rows.values.push_back(artist_id(a));
    }
  }
  return rows;
}

AttributeRows SynthCatalogue::album_rows() const {
  AttributeRows rows;
  rows.items.reserve(static_cast<size_t>(config_.items));
  rows.values.reserve(static_cast<size_t>(config_.items));
  for (const Artist& artist : artists_) {
    for (int64_t track = 0; track < artist.items; ++track) {
      const int64_t slot = artist.first_slot + track;
      const Draw d = draw(kMappingDraw, key_, static_cast<uint64_t>(slot), 1);
      if (d.uniform_a() < kCompilationShare) {
        rows.items.push_back(item_id(slot));
        rows.values.push_back(
            album_id(static_cast<int64_t>(scale_to(d.b, static_cast<uint64_t>(num_albums_)))));
      }
      rows.items.push_back(item_id(slot));
      rows.values.push_back(album_id(artist.first_album + track / kAlbumItems));
    }
  }
  return rows;
}

/// A bijection of [0, n): a Feistel network over the next power of four, walked until it comes back
/// into the range.
int64_t SynthCatalogue::scramble(int64_t value, int64_t n, uint64_t what) const {
  const int half = (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto x = static_cast<uint64_t>(value);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = base::splitmix64((key_ + 4 * what + round) ^ base::splitmix64(right));
      left = std::exchange(right, left ^ (mixed & mask));
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace segue::data
