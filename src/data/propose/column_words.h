#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace segue::data {

/// What columns of logs are called.
using Words = std::set<std::string, std::less<>>;
extern const Words kUserWords, kItemWords, kTimeWords, kHourWords;
extern const Words kEventWords;  // kinds of events
extern const Words kTypeWords;   // kinds of anything
extern const Words kValueWords, kLabelWords, kOtherWords;

/// Words of a name: "userId" and "user_id" are user, id.
std::vector<std::string> words_of(const std::string& name);

bool any_word(const std::string& name, const Words& of);

/// Whether a file called so tells of users: users.dat.
bool is_of_users(const std::string& file);

/// How far an event is on the way from seeing to buying: 0 a view, 4 a purchase; -1: unknown.
int step_of(const std::string& kind);

}  // namespace segue::data
