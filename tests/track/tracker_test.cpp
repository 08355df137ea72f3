#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/base/log.h>
#include <hasten/track/tracker.h>

#include "support/temporary_folder.h"

namespace hasten {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using track::Config;
using track::ConfigValue;

std::vector<json> lines(const std::filesystem::path& path) {
  std::istringstream in(files::read(path));
  std::vector<json> parsed;
  for (std::string line; std::getline(in, line);) parsed.push_back(json::parse(line));
  return parsed;
}

/// The bytes of the one event file in the folder.
std::string event_file(const std::filesystem::path& folder) {
  std::string content;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(content, "");
    content = files::read(entry.path());
  }
  return content;
}

const Config kConfig{
    {"lr", 0.1},
    {"epochs", 3},
    {"amsgrad", false},
    {"layers", ConfigValue::List{1, 2, "x"}},
    {"opt", Config{{"name", "adam"}, {"betas", ConfigValue::List{0.9, 0.999}}, {"more", Config{}}}}};

TEST(Config, IsFlattenedWithDots) {
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : track::flatten(kConfig)) texts[key] = track::to_text(value);
  const std::map<std::string, std::string> expected{{"lr", "0.1"},        {"epochs", "3"},
                                                    {"amsgrad", "false"}, {"layers", "[1,2,\"x\"]"},
                                                    {"opt.name", "adam"}, {"opt.betas", "[0.9,0.999]"},
                                                    {"opt.more", "{}"}};
  EXPECT_EQ(texts, expected);
}

TEST(Config, TakesValuesThatJsonHasNoNumberFor) {
  EXPECT_EQ(track::to_text(std::numeric_limits<double>::infinity()), "Infinity");
  EXPECT_EQ(track::to_text(ConfigValue::List{std::nan("")}), "[\"NaN\"]");
  EXPECT_EQ(track::to_text("a\xff"), "a\xff");
  EXPECT_EQ(track::to_text(ConfigValue::List{"a\xff"}), "[\"a\xEF\xBF\xBD\"]");
}

TEST(Config, RefusesTwoSettingsOfOneName) {
  EXPECT_THROW((void)track::flatten({{"opt.name", 1}, {"opt", Config{{"name", 2}}}}), Error);
}

TEST(Tracker, ListsTheKnownNamesWhenItKnowsNone) {
  try {
    (void)track::make_tracker("tensorbord", "/nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("'tensorbord'"));
    for (const std::string& name : track::tracker_names()) EXPECT_THAT(error.what(), HasSubstr(name));
  }
}

TEST(Tracker, KnowsEachByItsName) {
  const TemporaryFolder folder;
  for (const std::string& name : track::tracker_names())
    EXPECT_EQ(track::make_tracker(name, folder.path())->name(), name);
}

TEST(Tracker, NamesTheFolderItCannotWriteTo) {
  const TemporaryFolder folder;
  files::write_atomically(folder / "file", "x");
  for (const std::string& name : track::tracker_names()) {
    try {
      (void)track::make_tracker(name, folder / "file");
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kSystem);
      EXPECT_THAT(error.what(), HasSubstr((folder / "file").string()));
    }
  }
}

TEST(JsonLines, KeepsStepsValuesAndSettings) {
  const TemporaryFolder folder;
  const auto tracker = track::make_tracker("jsonl", folder / "runs" / "one");
  tracker->store_config(kConfig);
  for (const std::int64_t step : {0, 10, 20}) tracker->log({{"loss", 1.0 / (step + 1)}, {"lr", 0.1}}, step);
  tracker->finish();
  const auto read = lines(folder / "runs" / "one" / "metrics.jsonl");
  ASSERT_EQ(read.size(), 4U);
  EXPECT_EQ(read[0]["config"]["lr"], 0.1);
  EXPECT_EQ(read[0]["config"]["layers"], "[1,2,\"x\"]");
  EXPECT_EQ(read[0]["config"]["opt.name"], "adam");
  for (std::size_t i = 1; i < 4; ++i) {
    const std::int64_t step = 10 * (static_cast<std::int64_t>(i) - 1);
    EXPECT_EQ(read[i]["step"], step);
    EXPECT_EQ(read[i]["loss"].get<double>(), 1.0 / static_cast<double>(step + 1));  // to the last bit
    EXPECT_GT(read[i]["time"].get<double>(), 1.6e9);
    EXPECT_EQ(read[i].size(), 4U);
  }
}

TEST(JsonLines, StaysValidWithValuesAndNamesThatJsonLacks) {
  const TemporaryFolder folder;
  const auto tracker = track::make_tracker("jsonl", folder.path());
  const double infinity = std::numeric_limits<double>::infinity();
  tracker->log({{"a \"quoted\"\nname", std::nan("")}, {"b", infinity}, {"c", -infinity}, {"d\xff", 1e300}},
               1);
  tracker->flush();
  const auto read = lines(folder / "metrics.jsonl");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0]["a \"quoted\"\nname"], "NaN");
  EXPECT_EQ(read[0]["b"], "Infinity");
  EXPECT_EQ(read[0]["c"], "-Infinity");
  EXPECT_EQ(read[0]["d\xEF\xBF\xBD"], 1e300);
}

TEST(JsonLines, RefusesAValueThatHidesTheStep) {
  const TemporaryFolder folder;
  const auto tracker = track::make_tracker("jsonl", folder.path());
  EXPECT_THROW(tracker->log({{"step", 1.0}}, 1), Error);
  EXPECT_THROW(tracker->log({{"time", 1.0}}, 1), Error);
}

TEST(JsonLines, AppendsWhenARunIsResumed) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2})
    track::make_tracker("jsonl", folder.path())->log({{"loss", 1}}, step);
  const auto read = lines(folder / "metrics.jsonl");
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[1]["step"], 2);
}

TEST(JsonLines, RemovesALineThatWasCutByAKill) {
  const TemporaryFolder folder;
  std::vector<std::string> warnings;
  const auto before = log::set_sink([&](log::Level, std::string_view text) { warnings.emplace_back(text); });
  for (const char* left : {"{\"step\":1}\n{\"st", "{\"st"}) {
    files::write_atomically(folder / "metrics.jsonl", left);
    track::make_tracker("jsonl", folder.path())->log({{"loss", 1}}, 2);
    EXPECT_EQ(lines(folder / "metrics.jsonl").back()["step"], 2);
  }
  log::set_sink(before);
  EXPECT_EQ(lines(folder / "metrics.jsonl").size(), 1U);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_THAT(warnings[0], HasSubstr("metrics.jsonl"));
}

TEST(TensorBoard, WritesScalarsAndTheSettings) {
  const TemporaryFolder folder;
  const auto tracker = track::make_tracker("tensorboard", folder.path());
  tracker->store_config({{"opt", Config{{"name", "a|b\nc"}}}, {"layers", ConfigValue::List{1, 2}}});
  for (const std::int64_t step : {0, 10, 20}) tracker->log({{"loss", 0.25}}, step);
  tracker->finish();
  const std::string content = event_file(folder.path());
  EXPECT_THAT(content, HasSubstr("brain.Event:2"));
  EXPECT_THAT(content, HasSubstr("| layers | [1,2] |\n| opt.name | a\\|b c |\n"));
  // The summary of each step: the tag "loss" and 0.25; before it the step, which is left out when it is zero.
  const std::string summary("\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x80\x3e", 15);
  EXPECT_THAT(content, HasSubstr("\x10\x0a" + summary));
  EXPECT_THAT(content, HasSubstr(std::string("\x10\x14") + summary));
}

/// A tracker of a user's own.
class Memory : public track::Tracker {
 public:
  [[nodiscard]] std::string_view name() const override { return "memory"; }
  void store_config(const Config&) override {}
  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    losses[step] = values.at("loss");
  }
  std::map<std::int64_t, double> losses;
};

TEST(Tracker, CanBeAUsersOwn) {
  Memory memory;
  track::Tracker& tracker = memory;
  tracker.log({{"loss", 0.5}}, 3);
  tracker.finish();
  EXPECT_THAT(memory.losses, ElementsAre(std::pair<const std::int64_t, double>(3, 0.5)));
}

}  // namespace
}  // namespace hasten
