"""Objects of pygame are state, except for windows, fonts, clocks and sounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs import DummyVecEnv, StateError, check_saving
from xuance_envs.state.checkpointer import EnvCheckpointer

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
pygame = pytest.importorskip("pygame")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def without_a_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.quit()


class Ball(pygame.sprite.Sprite):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.image = pygame.Surface((4, 4), pygame.SRCALPHA)
        self.image.fill((200, 100, 0, 255), (1, 1, 2, 2))
        self.rect = self.image.get_rect()
        self.mask = pygame.mask.from_surface(self.image)
        self.place = getattr(pygame, "FRect", pygame.Rect)(0, 0, 4, 4)
        self.speed = pygame.Vector2(0, 0)


class Painting(gymnasium.Env):  # type: ignore[type-arg]
    """Paints over what it painted before, and observes it."""

    observation_space = spaces.Box(0, 255, (32, 24, 3), np.uint8)
    action_space = spaces.Discrete(5)

    def __init__(self, clock: bool = True) -> None:
        pygame.display.init()
        pygame.font.init()
        self.window = pygame.display.set_mode((32, 24))
        self.font, self.clock = pygame.font.Font(None, 10), pygame.time.Clock()
        self.canvas = pygame.Surface((32, 24))
        self.corner = self.canvas.subsurface((20, 10, 12, 14))
        self.icon = pygame.Surface((5, 5), depth=8)
        self.icon.set_palette([(k, 255 - k, k // 2) for k in range(256)])
        self.icon.set_colorkey(0)
        self.balls = pygame.sprite.Group()
        self.color, self.events = pygame.Color(5, 6, 7), [pygame.event.Event(1, key=2)]
        self.corners = {"home": pygame.Rect(0, 0, 3, 3)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.balls.empty()
        self.balls.add(Ball(), Ball())
        return self.seen(), {}

    def seen(self) -> Any:
        self.window.blit(self.canvas, (0, 0))
        return pygame.surfarray.array3d(self.canvas)

    def step(self, action: int) -> Any:
        self.steps += 1
        hits = 0
        for ball in self.balls:
            ball.speed += pygame.Vector2(int(action) - 1, 1).rotate(float(self.np_random.random()))
            ball.place.move_ip(ball.speed)
            ball.rect.topleft = int(ball.place.x) % 28, int(ball.place.y) % 20
            hits += ball.mask.count() + ball.rect.colliderect(self.corners["home"])
            self.canvas.blit(ball.image, ball.rect)
        self.corners["home"].move_ip(1, 0)
        self.corner.fill((self.steps, self.color.r, 9), (self.steps % 9, 0, 1, 14))
        self.icon.set_at((self.steps % 5, int(action) % 5), self.steps)
        self.canvas.blit(self.icon, (15, 15))
        self.color.r = (self.color.r + int(action)) % 256
        self.events.append(pygame.event.Event(2, key=self.steps))
        reward = float(hits + sum(event.key for event in self.events[-3:]))
        return self.seen(), reward, self.steps == 12, False, {}


def test_a_painting_goes_on_exactly() -> None:
    check_saving(Painting, steps=30)


def test_windows_fonts_and_clocks_are_kept_and_named() -> None:
    env = Painting()
    env.reset(seed=1)
    window = env.window
    checkpointer = EnvCheckpointer(env)
    data = checkpointer.save()
    for _ in range(5):
        env.step(1)
    checkpointer.prepare(data, trusted=True).apply()
    assert env.window is window
    named = checkpointer.plan.fingerprint.parts["kept resources"]
    kept = [f"Painting.{name}" for name in ("window", "font", "clock")]
    assert [name.partition(":")[0] for name in named] == kept
    assert check_saving(Painting, steps=2) == named


def test_a_locked_surface_is_refused() -> None:
    class Locked(Painting):
        def __init__(self) -> None:
            super().__init__()
            self.pixels = pygame.surfarray.pixels3d(self.canvas)

        def seen(self) -> Any:
            return self.pixels.copy()

        def step(self, action: int) -> Any:
            return self.seen(), 0.0, False, False, {}

    with DummyVecEnv([Locked]) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError, match=r"Locked\.canvas: .*a locked surface"):
            envs.save_state()


def test_surfaces_of_gymnasiums_environments_are_drawn_again() -> None:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=1)
    small = len(EnvCheckpointer(env).save())
    env.render()
    assert len(EnvCheckpointer(env).save()) < small + 1000
    check_saving(lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array"), steps=20)
    env.close()
