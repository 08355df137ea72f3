#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <hasten/base/log.h>
#include <hasten/track/progress_bar.h>

#include "track/text.h"

namespace hasten {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using track::ProgressBar;
using track::ProgressOptions;

/// Stands in for a terminal or a file: keeps what is written, and owns the time.
class Screen {
 public:
  ProgressOptions options(bool terminal) {
    ProgressOptions made;
    made.write = [this](std::string_view text) { written_ += text; };
    made.clock = [this] { return time_; };
    made.terminal = terminal;
    made.width = 100;
    made.unicode = false;
    return made;
  }

  void wait(std::chrono::milliseconds time) { time_ += time; }

  /// All lines; on a terminal each as it stands in the end, as "\r\033[K" clears it.
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> lines{""};
    for (std::size_t i = 0; i < written_.size(); ++i) {
      if (written_[i] == '\n') {
        lines.emplace_back();
      } else if (written_.compare(i, 4, "\r\033[K") == 0) {
        lines.back().clear();
        i += 3;
      } else {
        EXPECT_GE(static_cast<unsigned char>(written_[i]), 0x20) << "a control character at " << i;
        lines.back() += written_[i];
      }
    }
    if (lines.back().empty()) lines.pop_back();
    return lines;
  }

  [[nodiscard]] const std::string& written() const { return written_; }

 private:
  std::string written_;
  std::chrono::steady_clock::time_point time_{};
};

TEST(ProgressBar, ShowsAllThatIsKnownOnOneLine) {
  Screen screen;
  auto options = screen.options(true);
  options.description = "epoch 3";
  options.total = 938;
  options.unit = "images";
  options.units_per_step = 64;
  ProgressBar bar(options);
  bar.set("loss", 0.12345);
  screen.wait(10s);
  bar.update(312);
  EXPECT_THAT(screen.lines(), ElementsAre("epoch 3 [##########----------------------]  312/938   33%  "
                                          "1997 images/s  0:20 left  loss 0.1235"));
}

TEST(ProgressBar, DrawsEighthsOfABlock) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 16 * 8;
  options.unicode = true;
  options.width = 1 + 2 + 16 + static_cast<int>(std::string("   21/128   16%  21 steps/s  0:05 left").size());
  ProgressBar bar(options);
  screen.wait(1s);
  bar.update(21);
  EXPECT_THAT(screen.lines(), ElementsAre("|██▋             |   21/128   16%  21 steps/s  0:05 left"));
}

TEST(ProgressBar, RedrawsOnlyWhenItIsDue) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 1000;
  ProgressBar bar(options);
  const std::string first = screen.written();
  EXPECT_THAT(first, HasSubstr("0/1000"));
  for (int i = 0; i < 500; ++i) bar.update();
  screen.wait(99ms);
  EXPECT_FALSE(bar.due());
  bar.update();
  EXPECT_EQ(screen.written(), first);
  screen.wait(1ms);
  EXPECT_TRUE(bar.due());
  bar.update();
  EXPECT_THAT(screen.lines().back(), HasSubstr("502/1000"));
  EXPECT_FALSE(bar.due());
}

TEST(ProgressBar, NeverFillsTheLastColumn) {
  for (int width = 1; width < 130; ++width) {
    Screen screen;
    auto options = screen.options(true);
    options.description = "épreuve";
    options.total = 938;
    options.width = width;
    options.unicode = width % 2 == 0;
    ProgressBar bar(options);
    for (const char* name : {"loss", "accuracy", "learning rate"}) bar.set(name, 0.5);
    screen.wait(1s);
    bar.update(300);
    EXPECT_LE(track::columns_of(screen.lines().back()), static_cast<std::size_t>(std::max(width - 1, 1)))
        << width;
    if (width > 50) {
      EXPECT_THAT(screen.lines().back(), HasSubstr("300/938")) << width;
    }
  }
}

TEST(ProgressBar, DropsTheLastValuesWhereTheLineIsShort) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 10;
  options.width = 60;
  ProgressBar bar(options);
  bar.set("loss", 1);
  bar.set("accuracy", 0.5);
  screen.wait(1s);
  bar.update(2);
  EXPECT_THAT(screen.lines().back(), HasSubstr("loss 1"));
  EXPECT_THAT(screen.lines().back(), Not(HasSubstr("accuracy")));
}

TEST(ProgressBar, DoesNotCountStepsOfAnEarlierRunForTheRate) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 1000;
  options.start = 900;
  ProgressBar bar(options);
  EXPECT_THAT(screen.lines().back(), HasSubstr("900/1000   90%"));
  screen.wait(10s);
  bar.update(10);
  EXPECT_THAT(screen.lines().back(), HasSubstr("1 steps/s  1:30 left"));
  bar.update(90);
  bar.finish();
  EXPECT_EQ(bar.count(), 1000);
  EXPECT_THAT(screen.lines().back(), HasSubstr("1000/1000  100%  10 steps/s  in 0:10"));
}

TEST(ProgressBar, FollowsAChangeOfSpeed) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 1'000'000;
  ProgressBar bar(options);
  for (int i = 0; i < 600; ++i) {
    screen.wait(100ms);
    bar.update(100);  // 1000 a second for a minute
  }
  EXPECT_THAT(screen.lines().back(), HasSubstr("  1000 steps/s"));
  for (int i = 0; i < 600; ++i) {
    screen.wait(100ms);
    bar.update(1);  // and 10 a second for another
  }
  EXPECT_THAT(screen.lines().back(), HasSubstr("  10.01 steps/s"));
}

TEST(ProgressBar, ManagesWithoutATotal) {
  Screen screen;
  ProgressBar bar(screen.options(true));
  screen.wait(2s);
  bar.update(5);
  EXPECT_THAT(screen.lines(), ElementsAre("5 steps  2.5 steps/s"));
}

TEST(ProgressBar, StaysSaneAtItsEdges) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 10;
  options.description = "two\nlines\t";
  ProgressBar over(options);
  screen.wait(1s);
  over.update(25);
  EXPECT_THAT(screen.lines().back(),
              HasSubstr("two lines  [########################################]  25/10  100%"));
  EXPECT_THAT(screen.lines().back(), HasSubstr("0:00 left"));
  over.finish();
  options.total = 0;
  ProgressBar none(options);
  EXPECT_THAT(screen.lines().back(), HasSubstr("0/0  100%"));
  none.finish();
  options.total = std::numeric_limits<std::int64_t>::max();
  options.width = 120;
  ProgressBar many(options);
  screen.wait(1s);
  many.set("x", std::numeric_limits<double>::quiet_NaN());
  many.update();
  EXPECT_THAT(screen.lines().back(), HasSubstr("  0%  1 steps/s"));
  EXPECT_THAT(screen.lines().back(), HasSubstr("x nan"));
}

TEST(ProgressBar, CountsPercentExactly) {
  for (int count = 0; count <= 100; ++count) {
    Screen screen;
    auto options = screen.options(false);
    options.total = 100;
    options.start = count;
    ProgressBar(options).finish();
    EXPECT_THAT(screen.lines().back(), HasSubstr(" " + std::to_string(count) + "%"));
  }
}

TEST(ProgressBar, PrintsPlainLinesAtEachTenth) {
  Screen screen;
  auto options = screen.options(false);
  options.description = "train";
  options.total = 20;
  {
    ProgressBar bar(options);
    for (int i = 0; i < 20; ++i) {
      screen.wait(1s);
      EXPECT_EQ(bar.due(), i % 2 == 1) << i;
      bar.update();
    }
  }
  const auto lines = screen.lines();
  ASSERT_EQ(lines.size(), 10U);
  EXPECT_EQ(lines[0], "train:  2/20   10%  1 steps/s  0:18 left");
  EXPECT_EQ(lines[8], "train: 18/20   90%  1 steps/s  0:02 left");
  EXPECT_EQ(lines[9], "train: 20/20  100%  1 steps/s  in 0:20");
}

TEST(ProgressBar, PrintsPlainLinesAsTimeGoesBy) {
  Screen screen;
  auto options = screen.options(false);
  ProgressBar bar(options);
  for (int i = 0; i < 25; ++i) {
    screen.wait(1s);
    bar.update();
  }
  EXPECT_THAT(screen.lines(), ElementsAre("10 steps  1 steps/s", "20 steps  1 steps/s"));
}

TEST(ProgressBar, SkipsTenthsThatAreJumpedOver) {
  Screen screen;
  auto options = screen.options(false);
  options.total = 10;
  options.start = 3;
  ProgressBar bar(options);
  EXPECT_THAT(screen.lines(), IsEmpty());
  screen.wait(1s);
  bar.update(4);
  bar.update(3);
  bar.finish();
  EXPECT_EQ(screen.lines().size(), 2U);
}

TEST(ProgressBar, LetsTheLogAppearAboveIt) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 10;
  {
    ProgressBar bar(options);
    log::warning("the disk is slow");
    bar.write_line("a line");
    EXPECT_EQ(screen.lines().size(), 3U);
    EXPECT_EQ(screen.lines()[0], "hasten: warning: the disk is slow");
    EXPECT_EQ(screen.lines()[1], "a line");
    EXPECT_THAT(screen.lines()[2], HasSubstr("0/10"));
  }
  EXPECT_EQ(screen.lines().size(), 3U);
}

TEST(ProgressBar, GivesTheLogBackToTheProgramsOwnSink) {
  std::vector<std::string> kept;
  const auto before = log::set_sink([&](log::Level, std::string_view text) { kept.emplace_back(text); });
  Screen screen;
  {
    auto options = screen.options(true);
    options.total = 10;
    const ProgressBar bar(options);
    log::info("during");
  }
  log::info("after");
  log::set_sink(before);
  EXPECT_THAT(kept, ElementsAre("during", "after"));
  EXPECT_THAT(screen.written(), Not(HasSubstr("during")));
}

TEST(ProgressBar, FinishesOnceAndOnlyOnce) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 10;
  ProgressBar bar(options);
  bar.update(4);
  bar.finish();
  const std::string after = screen.written();
  EXPECT_EQ(after.back(), '\n');
  bar.finish();
  EXPECT_EQ(screen.written(), after);
  bar.write_line("later");
  EXPECT_EQ(screen.lines().back(), "later");
}

TEST(ProgressBar, IsNotTornByThreadsThatLog) {
  Screen screen;
  auto options = screen.options(true);
  options.total = 1000;
  std::vector<std::thread> threads;
  {
    ProgressBar bar(options);
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([] {
        for (int line = 0; line < 100; ++line) log::info("from a thread");
      });
    for (int i = 0; i < 1000; ++i) {
      screen.wait(200ms);
      bar.update();
    }
    for (std::thread& thread : threads) thread.join();
  }
  const auto lines = screen.lines();
  ASSERT_EQ(lines.size(), 401U);
  for (std::size_t i = 0; i < 400; ++i) EXPECT_EQ(lines[i], "hasten: from a thread");
  EXPECT_THAT(lines[400], HasSubstr("1000/1000"));
}

}  // namespace
}  // namespace hasten
