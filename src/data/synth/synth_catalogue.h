#pragma once

#include <cstdint>
#include <vector>

#include "data/synth/synth.h"

namespace segue::data {

/// The items of a synthetic log. Internally artists are numbered by popularity and items lie artist
/// by artist in `slots`; ids are scrambled so that nothing can be read from them.
class SynthCatalogue {
 public:
  explicit SynthCatalogue(const SynthConfig& config);

  static constexpr int kGenres = 24;
  static constexpr int64_t kAlbumItems = 9;

  int64_t num_artists() const { return static_cast<int64_t>(artists_.size()); }
  int64_t num_albums() const { return num_albums_; }

  int64_t popular_artist(double uniform) const;  // Zipf over all artists
  int genre(int64_t artist) const { return artists_[artist].genre; }

  struct Item {
    int64_t slot = 0;
    double quality = 0;  // mean 0, variance 1
    int32_t length = 0;  // seconds
  };
  /// One of the artist's items that were out by `time`, by popularity; `element` names the draw.
  int64_t draw_slot(int64_t artist, int64_t time, uint64_t element) const;
  Item item(int64_t slot) const;

  int64_t item_id(int64_t slot) const { return scramble(slot, config_.items, 0); }

  AttributeRows artist_rows() const;
  AttributeRows album_rows() const;

 private:
  struct Artist {
    uint32_t first_slot = 0, first_album = 0;
    uint8_t items = 0;
    uint8_t hit = 0;  // its most popular track; popularity falls from there on, around the end
    uint8_t genre = 0;
  };
  int64_t scramble(int64_t value, int64_t n, uint64_t what) const;
  // From 1 on: 0 stands for unknown.
  int64_t artist_id(int64_t artist) const { return 1 + scramble(artist, num_artists(), 1); }
  int64_t album_id(int64_t album) const { return 1 + scramble(album, num_albums_, 2); }
  bool is_released(const Artist& artist, int64_t album_of_artist, int64_t time) const;

  SynthConfig config_;
  uint64_t key_ = 0;
  std::vector<Artist> artists_;
  int64_t num_albums_ = 0;
};

}  // namespace segue::data
