#!/usr/bin/env bash
# Small logs in three common shapes, for docs/your-own-log.md: they stand for files that you have.
# usage: example_log.sh movielens|shop|clicks FOLDER
set -euo pipefail
[[ $# == 2 && $1 =~ ^(movielens|shop|clicks)$ ]] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$2"

# Users like some groups of items and not others; all draws are by a seed of their own.
common='
  function below(n) { return int(rand() * n) }
  function likes(user, group) { return (user * 7 + group * 13) % 5 < 2 }
  BEGIN { srand(5); OFS = "," }'

case $1 in
  movielens)
    awk "$common"' BEGIN {
      print "movieId,title,genres"
      split("Action,Comedy,Drama,Romance,Thriller", genre, ",")
      for (m = 1; m <= 200; ++m) {
        other = (m + int(m / 5)) % 5
        print m, "\"Film " m ", The\"", genre[m % 5 + 1] (m % 4 == 0 || other == m % 5 ? "" : "|" genre[other + 1])
      } }' >"$2/movies.csv"
    awk "$common"' BEGIN {
      print "userId,movieId,rating,timestamp"
      for (u = 1; u <= 150; ++u) {
        time = 1100000000 + below(2000000)
        for (i = 0; i < 80; ++i) {
          m = 1 + below(200)
          stars = (likes(u, m % 5) ? 3.5 : 1.5) + below(4) / 2
          print u, m, sprintf("%.1f", stars), time += 600 + below(90000)
        }
      } }' >"$2/ratings.csv"
    ;;
  shop) # one file a day, packed; a few rows are broken, as they are in life
    for day in 1 2 3 4 5 6 7 8; do
      awk -v day=$day "$common"' BEGIN {
        srand(day)
        print "event_time,event_type,product_id,category,user_id"
        for (t = 0; t < 86400; t += 60) {
          u = below(120); p = below(150)
          stamp = sprintf("2026-03-%02dT%02d:%02d:", day, t / 3600, t % 3600 / 60)
          row = "sku-" p OFS "cat-" p % 6 OFS "user-" u
          print stamp "00Z", "view", row
          bought = rand() < (likes(u, p % 6) ? 0.5 : 0.08)
          if (bought) print stamp "25Z", "cart", row
          if (bought && rand() < 0.4) print stamp "50Z", "buy", row
          if (t == 43200) print stamp "30Z", "view", "sku-1,cat-1,"
        } }' | gzip -n >"$2/2026-03-0$day.csv.gz"
    done
    ;;
  clicks)
    awk "$common"' BEGIN {
      print "ts,visitor,article,section,clicked"
      for (i = 0; i < 15000; ++i) {
        v = below(200); a = below(300)
        print sprintf("%d000", 1770000000 + i * 60), v, 1000 + a, a % 8, rand() < (likes(v, a % 8) ? 0.4 : 0.06) ? 1 : 0
      } }' >"$2/log.csv"
    ;;
esac
