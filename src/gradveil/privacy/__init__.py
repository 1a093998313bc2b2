"""What an accountant says about differential privacy; heuristic protections have no place here."""

from gradveil.privacy.accounting import AccountingError, Guarantee, account

__all__ = ["AccountingError", "Guarantee", "account"]
