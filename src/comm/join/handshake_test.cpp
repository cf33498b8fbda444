#include "comm/join/handshake.h"

#include <cstring>
#include <set>

#include <gtest/gtest.h>

namespace segue::comm {
namespace {

Session session_of(const std::string& secret) {
  return {Key(secret), std::string(kNonceBytes, 'a'), std::string(kNonceBytes, 'b')};
}

TEST(Handshake, WordsComeBackFromTheSideThatSaidThem) {
  const Session ours = session_of("a secret of ours"), theirs = session_of("a secret of ours");
  for (const std::string words : {"", "x", "meet 1 2 4000 m tcp:h:1\n"}) {
    EXPECT_EQ(theirs.open(Side::kCaller, ours.seal(Side::kCaller, words)), words);
    EXPECT_EQ(theirs.open(Side::kHost, ours.seal(Side::kHost, words)), words);
  }
}

TEST(Handshake, NothingElseIsBelieved) {
  const Session ours = session_of("a secret of ours");
  const std::string sealed = ours.seal(Side::kCaller, "talk run 1 2 0\n");
  // Another secret; sent back to where it came from; another connection.
  EXPECT_FALSE(session_of("another secret!!").open(Side::kCaller, sealed));
  EXPECT_FALSE(ours.open(Side::kHost, sealed));
  Session later = ours;
  later.host_nonce[5] ^= 1;
  EXPECT_FALSE(later.open(Side::kCaller, sealed));
  later = ours;
  later.caller_nonce[31] ^= 1;
  EXPECT_FALSE(later.open(Side::kCaller, sealed));
  std::swap(later.caller_nonce, later.host_nonce);
  EXPECT_FALSE(later.open(Side::kCaller, sealed));
  // Any bit, any cut, anything added.
  for (size_t at = 0; at < sealed.size(); ++at) {
    std::string changed = sealed;
    changed[at] ^= 4;
    EXPECT_FALSE(ours.open(Side::kCaller, changed)) << at;
    EXPECT_FALSE(ours.open(Side::kCaller, sealed.substr(0, at))) << at;
  }
  EXPECT_FALSE(ours.open(Side::kCaller, sealed + "x"));
}

TEST(Handshake, ANonceThatHasNotComeProvesNothing) {
  Session half = session_of("a secret of ours");
  half.host_nonce.clear();
  EXPECT_FALSE(half.open(Side::kCaller, half.seal(Side::kCaller, "words")));
}

TEST(Handshake, RandomTextsDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(random_digits(16).size(), 32);
    seen.insert(random_digits(16));
  }
  EXPECT_EQ(seen.size(), 100);
}

TEST(Handshake, MessagesOnTheWire) {
  size_t need = 0;
  const std::string wire = to_wire("hello");
  for (size_t n = 0; n < wire.size(); ++n) {
    EXPECT_EQ(look_at_wire(wire.substr(0, n), 5, need), Arrived::kMore) << n;
    EXPECT_EQ(need, n < kWireHead ? kWireHead : wire.size());
  }
  EXPECT_EQ(look_at_wire(wire, 5, need), Arrived::kWhole);
  EXPECT_EQ(look_at_wire(wire, 4, need), Arrived::kStrange);
  EXPECT_EQ(look_at_wire(wire + "x", 5, need), Arrived::kStrange);
  EXPECT_EQ(look_at_wire("GET / HTTP/1.1\r\n", 1000, need), Arrived::kStrange);
  // The longest length there is.
  EXPECT_EQ(look_at_wire(wire.substr(0, 4) + "\xff\xff\xff\xff", 1000, need), Arrived::kStrange);
}

TEST(Handshake, WhatIsSaidIsReadAsItWasSaid) {
  const auto visit = parse_visit(format(Visit{3, 8, {"", 4711, "host/boot"}, "tcp:a b:1"}));
  ASSERT_TRUE(visit);
  EXPECT_EQ(visit->rank, 3);
  EXPECT_EQ(visit->ranks, 8);
  EXPECT_EQ(visit->address.port, 4711);
  EXPECT_EQ(visit->address.machine, "host/boot");
  EXPECT_EQ(visit->place, "tcp:a b:1");

  const Table table{"run", {{"-", 1, "m"}, {"10.0.0.1", 65535, "n"}, {"fe80::1%eth0", 7, "o"}}};
  const auto read = parse_table(format(table), 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->run, "run");
  EXPECT_EQ(read->ranks[2].host, "fe80::1%eth0");
  EXPECT_EQ(read->ranks[1].port, 65535);
  EXPECT_FALSE(parse_table(format(table), 2));
  EXPECT_FALSE(parse_table(format(table), 4));
  EXPECT_LE(format(table).size(), longest_table(3));

  const auto talk = parse_introduction(format(Introduction{"run", uint64_t{1} << 63, 5, 0}));
  ASSERT_TRUE(talk);
  EXPECT_EQ(talk->group, uint64_t{1} << 63);
  EXPECT_EQ(talk->from, 5);
  EXPECT_EQ(talk->to, 0);

  for (const std::string secret : {"", "0123abcd"}) {
    const auto notice = parse_notice(format(Notice{{"::1", 9, ""}, "run", secret}));
    ASSERT_TRUE(notice);
    EXPECT_EQ(notice->address.host, "::1");
    EXPECT_EQ(notice->secret, secret);
  }
}

TEST(Handshake, WordsThatCannotBeMeantAreRefused) {
  for (const char* words :
       {"", "meet", "meet ", "meet 1 2 4000 m p", "meet 1 2 4000 m p\n\n", "meet 1 2 0 m p\n",
        "meet 1 2 70000 m p\n", "meet 1 2 -5 m p\n", "meet x 2 4000 m p\n", "meet 1  2 4000 m p\n",
        "meet 99999999999999999999 2 4000 m p\n", "meet 1 2 4000  p\n", "meet 1 2 4000 m \n",
        "meet 1 2 4000 m p\nq", "MEET 1 2 4000 m p\n", "1 2 127.0.0.1 40000 m n"}) {
    EXPECT_FALSE(parse_visit(words)) << words;
  }
  for (const char* words :
       {"", "talk r 1 2\n", "talk r 1 2 3", "talk r -1 2 3\n", "talk  1 2 3\n",
        "talk r 18446744073709551616 2 3\n", "talk r 1 2 3\nx", "talk r 1 2 3 4\n"}) {
    EXPECT_FALSE(parse_introduction(words)) << words;
  }
  for (const char* text : {"", "127.0.0.1 1 machine nonce", "segue h 1 r\n", "segue h 0 r s\n",
                           "segue h 1 r s", "segue h 1 r s\n ", "segue  1 r s\n"}) {
    EXPECT_FALSE(parse_notice(text)) << text;
  }
  for (const char* words : {"", "table r", "table \nh 1 m\n", "table r\nh 1 m", "table r\nh 1\n",
                            "table r\nh 65536 m\n", "table r\nh 1 m\nh"}) {
    EXPECT_FALSE(parse_table(words, 1)) << words;
  }
}

}  // namespace
}  // namespace segue::comm
